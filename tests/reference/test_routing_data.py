"""The real tables, speeds and requests: figures against plain Python, and the shipped digests against the loaders."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from agreement import agrees
from bilinq.traces import (
    RoutingTable,
    TableDigest,
    digest_table,
    load_azure_llm,
    load_inference_bench,
    load_mmlu,
    load_mooncake,
    load_paretobandit,
    load_splitwise,
)
from bilinq.traces.routing_digest import SHIPPED_TABLES

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason=f"needs the data files in {DATA}")


def real(name: str) -> RoutingTable:
    return (load_paretobandit if name == "paretobandit" else load_mmlu)(DATA / "routing" / name)


@needs_data
def test_tables_have_the_rows_of_their_files() -> None:
    lines = (DATA / "routing/paretobandit/val_k4.jsonl").read_text(encoding="utf-8").splitlines()
    rewards = [[arm["reward"] for arm in json.loads(line)["arms"].values()] for line in lines]
    np.testing.assert_array_equal(real("paretobandit").reward, rewards)
    questions = real("mmlu")
    assert len(questions) == 14042 and len(np.unique(questions.job_class)) == 57
    right = np.unique(questions.reward, axis=0, return_counts=True)[1]
    assert right.tolist() == [1985, 2497, 742, 8818]  # of (0, 0), (0, 1), (1, 0), (1, 1), counted with the csv module


@needs_data
@pytest.mark.parametrize("name", SHIPPED_TABLES)
def test_shipped_digests_are_what_the_loaders_compute(name: str) -> None:
    """Counts, means and covariances to the last digit; features up to the rounding of another machine."""
    shipped, found = TableDigest.shipped(name), TableDigest.of(real(name).with_features())
    assert (shipped.source, shipped.licence, shipped.servers) == (found.source, found.licence, found.servers)
    for ours, theirs in zip(shipped.classes, found.classes, strict=True):
        for field in ("name", "jobs", "reward", "covariance", "price"):
            assert getattr(ours, field) == getattr(theirs, field)
        np.testing.assert_allclose(ours.features or (), theirs.features or (), atol=1e-4)
    np.testing.assert_allclose(shipped.feature_covariance or (), found.feature_covariance or (), atol=1e-4)


@pytest.mark.parametrize("name", SHIPPED_TABLES)
def test_draws_have_the_means_of_the_digest(name: str) -> None:
    """Rewards less the mean of their class have mean zero, and so have their products less the covariance.

    Products of graded rewards are checked on the diagonal, since clipping weakens correlations; 0.01 off is noticed.
    """
    digest = TableDigest.shipped(name)
    table, number = digest_table(name, jobs=40_000, seed=3), {one.name: k for k, one in enumerate(digest.classes)}
    of = np.array([number[kind] for kind in table.job_class])
    mean, covariance = (np.array([getattr(one, key) for one in digest.classes])[of] for key in ("reward", "covariance"))
    off = table.reward - mean
    assert agrees(off, 0.0, false_alarm=1e-4) and not agrees(off, 0.01, false_alarm=1e-4)
    products = off[:, :, None] * off[:, None, :] - covariance
    kept = products if name == "mmlu" else np.diagonal(products, axis1=1, axis2=2)
    assert agrees(kept, 0.0, false_alarm=1e-4) and not agrees(kept, 0.01, false_alarm=1e-4)
    frequency = np.array([one.jobs for one in digest.classes], np.float64)
    shares = (of[:, None] == np.arange(len(frequency))).astype(float)
    assert agrees(shares, frequency / frequency.sum(), false_alarm=1e-4)
    assert not agrees(shares, 1.0 / len(frequency), false_alarm=1e-4)


@needs_data
def test_speeds_are_the_measured_ones() -> None:
    """At measured lengths: the mean of equal settings, counted with the csv module."""
    with (DATA / "llm_speed/llm_inference_bench.csv").open(newline="", encoding="utf-8") as file:
        rows = [tuple(row) for row in csv.reader(file)]
    wanted = ("Nvidia A100 GPU", "1", "vLLM", "meta-llama/Llama-2-7b-hf", "512", "1")
    measured = [float(row[6]) for row in rows if row[:6] == wanted]
    speeds = load_inference_bench(DATA / "llm_speed/llm_inference_bench.csv")
    found = speeds.duration(128, 512, model=wanted[3], accelerator=wanted[0], accelerators=1, framework="vLLM")
    assert len(speeds) == 4772 and found == pytest.approx(np.mean(measured))


@needs_data
def test_parts_of_a_request_add_up_to_whole_runs() -> None:
    """Runs of 128 tokens, which all were complete: prefill and token times give their median latency within 7 %."""
    split = load_splitwise(DATA / "llm_speed/splitwise_perf_model.csv")
    complete = (split.output == 128) & (split.batch == 1)
    settings = {*zip(split.model, split.accelerator, split.accelerators, split.prompt, strict=True)}
    for model, accelerator, number, prompt in settings:
        same = complete & (split.model == model) & (split.accelerator == accelerator)
        same &= (split.accelerators == number) & (split.prompt == prompt)
        found = split.duration(prompt, 128, model=model, accelerator=accelerator, accelerators=int(number))
        assert found == pytest.approx(np.median(split.latency[same]), rel=0.07)
    assert len(settings) == 84


@needs_data
def test_requests_come_in_order() -> None:
    requests = load_azure_llm(DATA / "llm_arrivals/azure_2023_conv.csv")
    assert len(requests) == 19366 and requests.arrival[1] == pytest.approx(50.995169 - 46.680590)
    shared = load_mooncake(DATA / "llm_arrivals/mooncake_conversation.jsonl")
    assert len(shared) == 12031 and shared.shared is not None
    assert shared.shared[:2].tolist() == [0.0, 1 / 15]  # its first block is that of the first request
