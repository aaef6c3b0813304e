"""A field that is written wrongly is told of; the fields that traces really have are not."""

from __future__ import annotations

import pytest

from windtunnel.cli import main
from windtunnel.inspection.misspelled import misspelled_names
from windtunnel.workload.traces import FORMATS
from workload.test_format_fixtures import EXPECTED, FIXTURES

ROW = {"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [1]}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_fixtures_have_no_misspelled_field(name: str):
    assert misspelled_names([str(FIXTURES / name)], FORMATS[EXPECTED[name][0]].fields) == {}


def test_run_says_what_was_probably_meant(write_trace, capsys):
    path = write_trace({**ROW, "sesion_id": "a"}, {**ROW, "piority": 3, "output_tokens_": 1})
    assert main(["run", path]) == 0
    [line] = [line for line in capsys.readouterr().err.splitlines() if "nothing reads" in line]
    assert line == (
        f"windtunnel: {path}: nothing reads 'output_tokens_' (did you mean 'output_tokens'?), 'piority' (did you mean "
        "'priority'?), 'sesion_id' (did you mean 'session_id'?)"
    )


@pytest.mark.parametrize("name", ["timestmp", "hash_id", "output_lenght", "inputlength", "delya", "sessionid"])
def test_one_or_two_slips_are_a_misspelling(name: str, write_trace):
    fields = FORMATS["mooncake"].fields
    assert misspelled_names([write_trace({name: 1})], fields).keys() == {name}


@pytest.mark.parametrize("name", ["type", "request", "chat_id", "output_bytes", "model", "x_request", "length"])
def test_another_word_is_none(name: str, write_trace):
    assert misspelled_names([write_trace({name: 1})], FORMATS["mooncake"].fields) == {}


def test_quiet_is_quiet(write_trace, capsys):
    assert main(["run", write_trace({**ROW, "sesion_id": "a"}), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_name_like_one_that_the_row_has_is_another_thing(write_trace):
    fields = FORMATS["mooncake"].fields
    assert misspelled_names([write_trace({**ROW, "hash_ids_2": [1]})], fields) == {}
    assert misspelled_names([write_trace({**ROW, "meta": {"sesion_id": 1}})], fields) == {}


def test_a_column_of_a_table(write_trace):
    path = write_trace("arrived_at,num_prefill_tokens,num_decode_tokens,x", "0,1,1,1", name="t.csv")
    assert misspelled_names([path], FORMATS["vidur"].fields) == {}
    path = write_trace("Timestamp,Sesion ID,Model,Request tokens,Response tokens", "0,a,m,1,1", name="t.csv")
    assert misspelled_names([path], FORMATS["burstgpt"].fields) == {"Sesion ID": "Session ID"}
