"""Addresses of machines in what somebody has written: who can read a text shall not learn them from it."""

import platform
import re

BYTE = r"(?:25[0-5]|2[0-4]\d|[01]?\d?\d)"
IP4 = rf"{BYTE}(?:\.{BYTE}){{3}}"
FIRST = r"(?<!\d)(?<!(?<!\w)\d\.)(?<!(?<!\w)\d\d\.)(?<!(?<!\w)\d{3}\.)"
LAST = r"(?!\d|\.\d+(?!\w))"
"""Of four numbers, and not of five, as a version may have them."""
ADDRESS = re.compile(
    r"/(?:ip4|ip6|ip6zone|dns|dns4|dns6|dnsaddr)/\S+"  # of libp2p
    rf"|(?<![\w:])(?:[0-9A-Fa-f]{{0,4}}:){{2,7}}{IP4}(?!\d)"  # ::ffff:203.0.113.7
    rf"|{FIRST}{IP4}{LAST}(?::\d+)?"  # whatever is around it: 203.0.113.7.nip.io
    rf"|(?<!\d){BYTE}(?:-{BYTE}){{3,}}(?!\d)"  # ip-203-0-113-7, pool-1-203-0-113-7
    r"|(?<![\w:])(?:[0-9A-Fa-f]{0,4}:){3,7}[0-9A-Fa-f]{0,4}(?:%\w+)?(?![\w:])"
    r"|(?<![\w:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{1,4})*::[0-9A-Fa-f:]*(?![\w:])"
)
NAMELESS = "peer"


def machine_name() -> str:
    """What others see of this machine where its owner has named nothing: not where it is reached."""
    name = platform.node()
    return NAMELESS if not name or ADDRESS.search(name) else name
