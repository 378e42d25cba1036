"""Where the peers of hivemind or torchft meet in bench_time_to_loss.py, until its input ends.

Its work is the first argument, as JSON: an auxiliary peer of ``hivemind.Optimizer``, which averages for the trainers,
or torchft's lighthouse. How to reach it is its one line of output.
"""

import json
import os
import sys
import threading

from global_step_peer import watch_input
from race_setup import HIVEMIND, Work

ASSIST_EVERY_S = 0.1


def main() -> None:
    """Body of the process."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to the log
    work = Work.from_json(sys.argv[1])
    over = threading.Event()
    threading.Thread(target=watch_input, args=(threading.Event(), over), daemon=True).start()
    if work.engine.name in HIVEMIND:
        import torch
        from race_hivemind import HivemindPeer

        torch.set_num_threads(1)
        torch.manual_seed(work.seed)
        peer = HivemindPeer(work.task().build_model(), work, is_auxiliary=True)
        print(json.dumps({"contact": peer.contact}), file=out, flush=True)
        while not over.wait(ASSIST_EVERY_S):
            peer.assist()
        peer.leave()
    else:
        from race_torchft import start_lighthouse

        lighthouse, contact = start_lighthouse(work.host)
        print(json.dumps({"contact": contact}), file=out, flush=True)
        over.wait()
        lighthouse.shutdown()


if __name__ == "__main__":
    main()
