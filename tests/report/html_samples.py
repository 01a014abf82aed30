"""Results that the tests of reports draw, and how to read a report back."""

import functools
import json
import re
from html.parser import HTMLParser

from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.report.output import json_text
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan

NASTY = "</script><script>alert(1)</script> \"q\" 'a' <img src=x onerror=alert(1)> & \u2028 \u00e9\u4e2d\U0001f600 ${x} {{7*7}}"


@functools.cache
def _planned():
    search = SearchOptions(effort="scan", top=8)
    return json_text(plan("llama3-8b", "dgx-h100:2", seq_len=8192, global_batch=64, search=search).to_dict())


def planned():
    return json.loads(_planned())


@functools.cache
def _deep():
    degrees = Degrees(tp=2, pp=16, vpp=2, schedule="interleaved-1f1b")
    return json_text(estimate("gpt3-175b", "dgx-h100:32", seq_len=2048, global_batch=512, degrees=degrees).to_dict())


def deep():
    """A plan of 16 stages."""
    return json.loads(_deep())


@functools.cache
def _too_large():
    search = SearchOptions(effort="scan")
    return json_text(plan("llama3-70b", "dgx-h100:1", seq_len=8192, global_batch=8, search=search).to_dict())


def too_large():
    """A model that fits nowhere on its cluster."""
    return json.loads(_too_large())


def sweep():
    """A sweep of one model over sizes, and one point where nothing fits."""
    points = []
    for model in ("llama3-8b", "mistral-7b"):
        for nodes in (1, 2, 4):
            made = estimate(model, f"dgx-h100:{nodes}", seq_len=4096, global_batch=64, degrees=Degrees(tp=2)).to_dict()
            key = {"model": model, "node": "dgx-h100", "nodes": nodes, "gpus": 8 * nodes, "seq_len": 4096, "global_batch": 64}
            points.append({"key": key, "status": "ok", "reason": None, "result_digest": "0" * 64, "best": made})
    lost = {**points[0]["key"], "nodes": 8, "gpus": 64}
    points.append({"key": lost, "status": "infeasible", "reason": "nothing fits", "result_digest": None, "best": None})
    return {"schema_version": 1, "kind": "sweep-result", "points": points, "run": {}}


def data_of(text):
    """The embedded data of a page."""
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


class Tags(HTMLParser):
    """Every element with its attributes, and the text outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self._inside = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in {"script", "style"}:
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data):
        if not self._inside:
            self.texts.append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]
