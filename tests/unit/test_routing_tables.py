"""Tables, speeds and recorded requests of language models: small files, and what is wrong with damaged ones."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bilinq.errors import BadInput, BilinqError
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
from bilinq.traces.digest_files import parse, text
from bilinq.traces.routing_digest import _before_clipping, _clipped

BENCH = "Hardware,Num of Hardware,Framework,Model,Input Output Length,Batch Size,Latency,Throughput\n"
SPLIT = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,e2e_time,tensor_parallel\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def prompt(**changed: Any) -> str:
    arms = {"small": {"reward": 0.5, "cost": 1e-5}, "large": {"reward": 1.0, "cost": 2e-3}}
    return json.dumps({"prompt": "What is two plus two?", "source": "sums", "arms": arms} | changed) + "\n"


def table(number: int = 6) -> RoutingTable:
    reward = np.arange(2.0 * number).reshape(number, 2) / (2 * number)
    words = (
        "red apple pie",
        "green apple tree",
        "blue sky over sea",
        "sum of two numbers",
        "prove the lemma",
        "old tree",
    )
    return RoutingTable(
        reward=reward, price=2 * reward, text=tuple(words[k % 6] for k in range(number)), servers=("small", "large"),
        job_class=np.array(["fruit", "sums"])[np.arange(number) % 2], source="made here", licence="none",
    )  # fmt: skip


def test_paretobandit_reads_rewards_prices_and_sources(tmp_path: Path) -> None:
    (tmp_path / "val_k4.jsonl").write_text(prompt() + "\n" + prompt(source="facts"))
    found = load_paretobandit(tmp_path)
    assert found.servers == ("small", "large") and found.job_class.tolist() == ["sums", "facts"]
    assert found.price is not None and found.price.tolist() == [[1e-5, 2e-3]] * 2
    assert found.reward.tolist() == [[0.5, 1.0]] * 2 and found.text == ("What is two plus two?",) * 2


def test_mmlu_reads_a_file_for_each_subject(tmp_path: Path) -> None:
    (tmp_path / "mmlu_law.csv").write_text('prompt,a,b\n"two\nlines",True,False\n')
    (tmp_path / "mmlu_art.csv").write_text("prompt,a,b\none,False,True\n")
    found = load_mmlu(tmp_path)
    assert found.job_class.tolist() == ["art", "law"] and found.reward.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: must be a JSON object; Expecting"),
        ("[1]", r"line 2: must be a JSON object; got \[1\]"),
        (prompt(arms={}), "line 2: arms must be an object with entries; got {}"),
        (
            prompt(arms={"small": {"reward": 1, "cost": 1}}),
            "line 2: arms must be those of the first line, small, large; got",
        ),
        (prompt(arms={"small": 1, "large": 2}), r"line 2: arms\['small'\] must be an object; got 1"),
        (prompt().replace("0.5", "1.5"), r"line 2: arms\['small'\].reward must be a number from 0 to 1; got 1.5"),
        (prompt().replace("1e-05", "-1"), r"line 2: arms\['small'\].cost must be a number of at least 0; got -1"),
        (prompt().replace("source", "from"), "line 2: must have 'source'; got only prompt, from, arms"),
        (prompt(prompt=" "), "line 2: prompt must be text; got ' '"),
    ],
)
def test_damaged_prompts_are_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "val_k4.jsonl").write_text(prompt() + line)
    with pytest.raises(BadInput, match=f"val_k4.jsonl: {message}"):
        load_paretobandit(tmp_path)


@pytest.mark.parametrize(
    ("load", "content", "message"),
    [
        (load_azure_llm, "TIMESTAMP,GeneratedTokens\n", "line 1: must have a column 'ContextTokens'"),
        (load_azure_llm, AZURE, "must contain at least one record; got none"),
        (load_azure_llm, AZURE + "yesterday,1,2\n", "line 2: TIMESTAMP must be a date and time; got 'yesterday'"),
        (load_azure_llm, AZURE + "2023-11-16 18:00:00,1.5,2\n", "line 2: ContextTokens must be a whole number; got '1.5'"),
        (load_azure_llm, AZURE + "2023-11-16 18:00:00,1,2,3\n", "line 2: must have 3 fields; got 4"),
        (load_azure_llm, AZURE + "2023-11-16,1,2\n2023-11-15,1,2\n", "line 3: TIMESTAMP must not be before"),
        (load_azure_llm, "a,a\n", "line 1: columns must have names of their own; got 'a, a'"),
        (load_azure_llm, AZURE + '2023-11-16,"1,2\n', "must be CSV; unexpected end of data"),
        (load_mooncake, '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0.5]}',
         r"line 1: hash_ids must be a list of whole numbers; got \[0.5\]"),
        (load_mooncake, '{"timestamp": "soon"}', "line 1: timestamp must be a number of at least 0; got 'soon'"),
        (load_inference_bench, BENCH + "a,1,f,m,128,1,0,9\n", "line 2: Latency must be positive; got '0'"),
        (load_splitwise, SPLIT + "m,a,0,1,128,9,9,9,1\n", "line 2: prompt_size must be a number of at least 1; got '0'"),
    ],
)  # fmt: skip
def test_damaged_lines_are_named(tmp_path: Path, load: Callable[[Path], object], content: str, message: str) -> None:
    (tmp_path / "trace").write_text(content)
    with pytest.raises(BadInput, match=f"trace: {message}"):
        load(tmp_path / "trace")


def test_missing_and_binary_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, message in (
        ("none", "cannot be read; No such file"),
        ("binary", "must be UTF-8 text; invalid start byte"),
    ):
        with pytest.raises(BadInput, match=f"{name}: {message}"):
            load_mooncake(tmp_path / name)
    with pytest.raises(BadInput, match=r"must contain files named mmlu_<subject>.csv; got none"):
        load_mmlu(tmp_path)
    (tmp_path / "mmlu_art.csv").write_text("prompt,a,b\none,False,maybe\n")
    with pytest.raises(BadInput, match=r"mmlu_art.csv: line 2: b must be True or False; got 'maybe'"):
        load_mmlu(tmp_path)


def test_texts_without_words_are_refused() -> None:
    with pytest.raises(BadInput, match="texts must have words of at least two letters; pass embed for others"):
        dataclasses.replace(table(), text=tuple("abcdef")).features(3)


def test_features_are_centred_and_have_no_constant() -> None:
    vectors = table().features(3)
    np.testing.assert_allclose(vectors.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(vectors.var(axis=0), 1 / 3)
    with pytest.raises(BadInput, match="dimensions must be below the number of jobs, 6; got 6"):
        table().features(6)


def test_an_embedding_of_the_users_own_is_standardised() -> None:
    found = table().with_features(embed=lambda texts: [[len(one), 7.0] for one in texts]).vectors
    assert found is not None and (found[:, 1] == 0).all()
    lengths = np.array([len(one) for one in table().text or ()])
    np.testing.assert_allclose(found[:, 0], (lengths - lengths.mean()) / lengths.std() / np.sqrt(2))
    with pytest.raises(BadInput, match=r"embed\(text\) must have shape \(6, dimensions\); got \(2, 2\)"):
        table().features(embed=lambda texts: np.ones((2, 2)))


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(BilinqError, match=r"bilinq\[text\] is not installed; run: pip install 'bilinq\[text\]'"):
        table().features(3)


def test_draws_use_every_job_once_before_any_twice() -> None:
    rng = np.random.default_rng(1)
    drawn = table().with_features(2).draw(9, rng)
    assert len(drawn) == 9 and len(set(drawn.reward[:6, 0].tolist())) == 6
    assert drawn.vectors is not None and drawn.text is not None and drawn.price is not None
    np.testing.assert_array_equal(drawn.price, 2 * drawn.reward)
    assert len(set(table().draw(6, rng, repeat=True).reward[:, 0].tolist())) < 6


def test_a_workload_has_the_named_servers_in_their_order() -> None:
    given = table().workload(arrival=np.arange(6.0), duration=[1.0, 2.0], servers={"large": 3})
    assert given["servers"] == {"large": 3} and given["features"] is None
    np.testing.assert_array_equal(given["reward"][:, 0], table().reward[:, 1])
    np.testing.assert_array_equal(given["duration"], np.full((6, 1), 2.0))
    good: dict[str, Any] = {"arrival": np.arange(6.0), "duration": 1.0, "servers": {"small": 1}}
    wrong: dict[str, dict[str, Any]] = {
        "servers must be among small, large; got 'huge'": {"servers": {"huge": 1}},
        "arrival must not fall; got a fall after job 2": {"arrival": [0, 1, 3, 2, 4, 5]},
        "duration must be positive": {"duration": 0.0},
    }
    for message, changed in wrong.items():
        with pytest.raises(BadInput, match=message):
            table().workload(**(good | changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"servers": ("small",)}, r"reward must have shape \(jobs, servers\) = \(6, 1\); got \(6, 2\)"),
        ({"price": np.ones((2, 2))}, "price must have the shape of reward"),
        ({"text": ("one",)}, "text must have one entry for each of 6 jobs; got 1"),
        ({"vectors": np.ones(6)}, r"vectors must have shape \(6, dimensions\); got \(6,\)"),
    ],
)
def test_tables_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    fields = ("reward", "price", "text", "servers", "job_class", "source", "licence")
    with pytest.raises(BadInput, match=message):
        RoutingTable(**({name: getattr(table(), name) for name in fields} | changed))


def test_durations_are_interpolated_and_refused_outside(tmp_path: Path) -> None:
    rows = "m,a,100,1,100,10,2,9,1\nm,a,100,1,100,30,2,9,1\nm,a,300,1,200,60,4,9,1\nm,a,300,8,200,60,4,9,1\n"
    (tmp_path / "split.csv").write_text(SPLIT + rows)
    speeds = load_splitwise(tmp_path / "split.csv")
    setting: dict[str, Any] = {"model": "m", "accelerator": "a"}
    np.testing.assert_allclose(speeds.duration([100, 200], 150, **setting), [0.02 + 149 * 0.003, 0.04 + 149 * 0.003])
    with pytest.raises(BadInput, match="output must lie in the measured range, 100 to 200; got 250"):
        speeds.duration(100, 250, **setting)
    np.testing.assert_allclose(speeds.duration(999, 250, **setting, outside="nearest"), 0.06 + 249 * 0.004)
    with pytest.raises(BadInput, match="batch must be measured at two lengths of prompt or more; got 1"):
        speeds.duration(100, 100, **setting, batch=8)
    with pytest.raises(BadInput, match="model must be one of m; got 'n'"):
        speeds.duration(100, 100, model="n", accelerator="a")


def test_settings_measured_twice_must_be_chosen(tmp_path: Path) -> None:
    rows = "a,1,f,m,100,1,1,9\na,1,f,m,200,1,4,9\na,2,f,m,100,1,1,9\n"
    (tmp_path / "bench.csv").write_text(BENCH + rows)
    speeds = load_inference_bench(tmp_path / "bench.csv")
    assert speeds.duration(100, 150, model="m", accelerator="a", accelerators=1) == pytest.approx(150 * 0.015)
    with pytest.raises(BadInput, match="accelerators must be given, one of 1, 2; got None"):
        speeds.duration(100, 150, model="m", accelerator="a")


def test_shared_blocks_are_those_of_earlier_requests(tmp_path: Path) -> None:
    rows = [{"timestamp": 500 * k, "input_length": 9, "output_length": 2, "hash_ids": ids}
            for k, ids in enumerate(([0, 1], [0, 2], [0, 2, 3, 4]))]  # fmt: skip
    (tmp_path / "trace").write_text("\n".join(map(json.dumps, rows)))
    found = load_mooncake(tmp_path / "trace")
    assert (
        found.shared is not None and found.shared.tolist() == [0.0, 0.5, 0.5] and found.arrival.tolist() == [0, 0.5, 1]
    )


def test_small_classes_are_joined_in_a_digest() -> None:
    odd = table(12)
    odd.job_class[:5] = ["a", "b", "c", "d", "e"]
    digest = TableDigest.of(odd)
    assert [(one.name, one.jobs) for one in digest.classes] == [("others", 12)]  # fruit and sums have 3 and 4 left
    assert parse(TableDigest, text(digest), "digest") == digest
    with pytest.raises(BadInput, match="table must have at least 5 jobs; got 4"):
        TableDigest.of(table(4))
    with pytest.raises(BadInput, match="name must be one of 'paretobandit', 'mmlu'; got 'gavel'"):
        digest_table("gavel")


def test_gaussians_are_chosen_by_their_moments_after_clipping() -> None:
    mean, spread = np.array([[0.5, 0.9, 0.97, 1.0]]), np.array([[0.1, 0.2, 0.1, 0.0]])
    centre, width = _before_clipping(mean, spread)
    np.testing.assert_allclose(_clipped(centre[:, :3], width[:, :3])[0], mean[:, :3], atol=1e-9)
    np.testing.assert_allclose(_clipped(centre[:, :3], width[:, :3])[1], spread[:, :3], atol=1e-9)
    assert centre[0, 3] == 1.0 and width[0, 3] == 0.0
    draws = np.clip(centre + width * np.random.default_rng(0).standard_normal((200_000, 1)), 0.0, 1.0)
    np.testing.assert_allclose(draws.mean(axis=0), mean[0], atol=0.003)
