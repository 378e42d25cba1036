"""Where the peers of hivemind or torchft meet in bench_time_to_loss.py, until its input ends.

The address to listen at and the engine are the arguments: a DHT peer without a model, or a lighthouse. How to reach it
is its one line of output.
"""

import json
import os
import sys
import threading

from global_step_peer import watch_input
from race_setup import HIVEMIND


def main() -> None:
    """Body of the process."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    host, engine = sys.argv[1:]
    over = threading.Event()
    threading.Thread(target=watch_input, args=(threading.Event(), over), daemon=True).start()
    if engine in HIVEMIND:
        from race_hivemind import start_dht

        dht, contact = start_dht(host, "")
        close = dht.shutdown
    else:
        from race_torchft import start_lighthouse

        lighthouse, contact = start_lighthouse(host)
        close = lighthouse.shutdown
    print(json.dumps({"contact": contact}), file=out, flush=True)
    over.wait()
    close()


if __name__ == "__main__":
    main()
