"""The metrics in Prometheus' text format. No peer's id or name is in it: their number has no bound."""

import asyncio
import gc
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from collab.metrics.names import BY_EPOCH, COUNTERS, EPOCH, PEERS, Metric, prometheus_name
from collab.version import VERSION

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(
    figures: Mapping[str, float], counters: Mapping[str, int], peers: Mapping[tuple[str, str], int]
) -> str:
    """What a scrape gets.

    Args:
        figures: values by metric name; what is not in it, nobody knows.
        counters: likewise; what is not in it was never counted.
        peers: how many there are, by role and state.
    """
    lines = [*_head("collab_build_info", "gauge", "Always 1; the version is in the label")]
    lines.append(f'collab_build_info{{version="{_escaped(VERSION)}"}} 1')
    for metric in (EPOCH, *BY_EPOCH):
        if metric.name in figures and metric != PEERS:
            lines += _sample(metric, "gauge", figures[metric.name])
    lines += _head(prometheus_name(PEERS), "gauge", "Peers, by role and state")
    for (role, state), number in sorted(peers.items()):
        lines.append(f'{prometheus_name(PEERS)}{{role="{_escaped(role)}",state="{_escaped(state)}"}} {number}')
    for metric in COUNTERS:
        lines += _sample(metric, "counter", counters.get(metric.name, 0))
    for name, kind, text, value in _of_this_process():
        lines += [*_head(name, kind, text), f"{name} {value:.16g}"]
    lines += _head("python_gc_collections_total", "counter", "Searches for rings of dead objects, by generation")
    for generation, told in enumerate(gc.get_stats()):
        lines.append(f'python_gc_collections_total{{generation="{generation}"}} {told["collections"]}')
    return "\n".join(lines) + "\n"


def _sample(metric: Metric, kind: str, value: float) -> list[str]:
    name = prometheus_name(metric)
    return [*_head(name, kind, metric.text), f"{name} {value:.16g}"]


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _of_this_process() -> Iterator[tuple[str, str, str, float]]:
    """Under the names that all programs use for it, where there are such. Called in the event loop."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield "process_cpu_seconds_total", "counter", "Processor time of the backbone", used.ru_utime + used.ru_stime
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    yield "process_resident_memory_bytes", "gauge", "Memory of the backbone", float(pages * resource.getpagesize())
    yield "process_open_fds", "gauge", "Open files and sockets of the backbone", float(len(os.listdir("/proc/self/fd")))
    yield "collab_threads", "gauge", "Threads of the backbone", float(len(os.listdir("/proc/self/task")))
    yield "collab_tasks", "gauge", "Tasks in the backbone's event loop", float(len(asyncio.all_tasks()))
