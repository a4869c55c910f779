"""Tests of examples/benchmark.py."""
import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))

# =====================================================================================================================
# examples/benchmark.py as a real process, with small counts: that it measures and shows, not how fast anything is.
# =====================================================================================================================

BENCHMARK = [sys.executable, os.path.join(HERE, "examples", "benchmark.py"), "--quick", "--rounds", "1"]
SVG = "{http://www.w3.org/2000/svg}"


def benchmark(folder, *words, **options):
    """Start it; what it needs for a while lies in this folder."""
    return subprocess.Popen([*BENCHMARK, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=dict(os.environ, TMPDIR=str(folder)), **options)


def test_the_benchmark_shows_a_row_for_each_figure_and_draws_its_speeds(tmp_path):
    work, plot, kept = tmp_path / "work", tmp_path / "plot.svg", tmp_path / "kept.json"
    work.mkdir()
    process = benchmark(work, "--only", "imports", "start", "stream", "receive", "--markdown", "--plot", str(plot),
                        "--json", str(kept))
    out, errors = process.communicate(timeout=50)
    assert (process.returncode, errors) == (0, ""), errors
    assert not list(work.iterdir())
    about, _, head, rule, *lines = out.splitlines()
    assert about.endswith("median of 1.") and rule.startswith("| --- | --- | ---: |")
    assert [word.strip() for word in head.split("|")][1:7] == ["figure", "unit", "bare", "acp.py", "ratio", "target"]
    rows = {cells[1]: cells[2:] for cells in ([cell.strip() for cell in line.split("|")] for line in lines)}
    timed = {"import": "ms", "start to the answer of initialize": "ms",
             **{f"{doing}, version {version}": "chunks/s"
                for doing in ("streaming small chunks", "receiving typed, merged updates") for version in (1, 2)}}
    sizes = "peak memory of an idle agent", "peak memory after receiving 3,000"
    assert [*rows] == [*list(timed)[:2], sizes[0], *list(timed)[2:], sizes[1]]
    for words, unit in timed.items():
        assert rows[words][0] == unit
        floor, ours, ratio = (float(cell.replace(",", "")) for cell in rows[words][1:4])
        assert floor > 0 and ours > 0 and 0.001 < ratio < 1000, (words, rows[words])
        assert abs(ratio - ours / floor) <= 0.02 * ratio + 0.01, (words, rows[words])  # both were rounded
        assert rows[words][5] in ("ok", "missed")
    figures = json.loads(kept.read_text())["figures"]
    assert len(figures) == 8
    assert all(len(each["values"]["bare"]) == 1 for each in figures.values() if each["unit"] != "MiB")

    picture = xml.etree.ElementTree.parse(plot).getroot()
    assert picture.find(SVG + "title").text and "acp.py" in picture.find(SVG + "desc").text
    bars = [each for each in picture.iter(SVG + "rect") if each.get("class", "").startswith("bar")]
    widths = [float(bar.get("width")) for bar in bars]
    speeds = [1 / figures["start"]["ratio"]] + [figures[name]["ratio"] for name in (
        "stream1", "stream2", "receive1", "receive2")]
    assert len(bars) == 5
    for width, speed in zip(widths, speeds):
        assert abs(width / max(widths) - speed / max(speeds)) < 0.001, (widths, speeds)
    assert max(float(bar.get("x")) + width for bar, width in zip(bars, widths)) < float(picture.get("width"))


def test_an_unknown_name_of_a_measurement_is_refused_with_those_that_exist(tmp_path):
    process = benchmark(tmp_path, "--only", "nothing")
    out, errors = process.communicate(timeout=20)
    assert process.returncode == 2 and not out
    assert "'nothing'" in errors and all(name in errors for name in ("imports", "stream", "receive", "unread"))


def test_a_place_without_an_sdk_is_refused(tmp_path):
    process = benchmark(tmp_path, "--peer", str(tmp_path))
    assert "no SDK in" in process.communicate(timeout=20)[1] and process.returncode == 2


def test_an_interrupted_benchmark_leaves_nothing(tmp_path):
    process = benchmark(tmp_path, "--only", "unread")
    deadline = time.monotonic() + 20
    while not any(tmp_path.glob("*/compiled")) and time.monotonic() < deadline:  # an agent runs
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, out, errors) == (130, "", "")
    assert not list(tmp_path.iterdir())
    for place in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError), open(place, "rb") as file:
            assert os.fsencode(tmp_path) not in file.read(), place
