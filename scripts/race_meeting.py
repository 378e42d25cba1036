"""Where the peers of hivemind meet in bench_time_to_loss.py: a DHT peer without a model, until its input ends.

The address to listen at is the first argument; how to reach it is its one line of output.
"""

import json
import os
import sys
import threading

from global_step_peer import watch_input


def main() -> None:
    """Body of the process."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import hivemind

    host = sys.argv[1]
    over = threading.Event()
    threading.Thread(target=watch_input, args=(threading.Event(), over), daemon=True).start()
    dht = hivemind.DHT(
        start=True, host_maddrs=[f"/ip4/{host}/tcp/0"], use_relay=False, use_auto_relay=False, auto_nat=False,
        nat_port_map=False,
    )
    addresses = [str(address) for address in dht.get_visible_maddrs()]
    print(json.dumps({"contact": " ".join(a for a in addresses if f"/{host}/" in a)}), file=out, flush=True)
    over.wait()
    dht.shutdown()


if __name__ == "__main__":
    main()
