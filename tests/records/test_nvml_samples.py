"""The file of samples survives whatever killed its writer, and tells of every other fault."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.rank.nvml.nvml import Reading
from zerobench.records.nvml_samples import HEADER, NvmlSample, read_samples, row

BYTES = st.none() | st.integers(0, 2**63)
NUMBERS = st.none() | st.floats(0, 1e12)
READINGS = st.builds(Reading, st.integers(0, 4 * 10**15).map(lambda us: us / 1e6), BYTES, BYTES, NUMBERS, NUMBERS)
UUIDS = st.sampled_from(
    ["GPU-fa4e0000-0000-4000-8000-000000000000", "MIG-GPU-b8ea3855-276c-c9cb-b366-c6fa655957c5/1/0"]
)


def as_sample(uuid: str, reading: Reading) -> NvmlSample:
    told = (reading.used_bytes, reading.reserved_bytes, reading.power_watts, reading.energy_joules)
    return NvmlSample(float(f"{reading.t_s:.6f}"), uuid, *told)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(UUIDS, READINGS), max_size=8), st.data())
def test_a_file_cut_at_any_byte_reads_as_the_samples_whose_lines_are_whole(
    tmp_path_factory: pytest.TempPathFactory, readings: list[tuple[str, Reading]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("samples") / "nvml_node0.csv"
    whole = HEADER + "".join(row(*reading) for reading in readings)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    path.write_text(cut)
    num_whole = max(0, cut.count("\n") - 1)
    assert list(read_samples(path)) == [as_sample(*reading) for reading in readings[:num_whole]]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("time,device\n1,2\n", "line 1: columns 'time,device'; choices: 't_s,gpu_uuid"),
        (HEADER + "1.0,GPU-0,5,,,\n\0\0\0\0\n1.1,GPU-0,5,,,\n", "line 3: "),
        (HEADER + "1.0,GPU-0,many,,,\n", "line 2: '1.0,GPU-0,many,,,' is not a sample"),
        (HEADER + "1.0,GPU-0,5,,\n", "line 2: '1.0,GPU-0,5,,' is not a sample"),
        (HEADER + "1.0,GPU-0,-5,,,\n", "line 2: '1.0,GPU-0,-5,,,' is not a sample"),
        (HEADER + "nan,GPU-0,5,,,\n", "line 2: 'nan,GPU-0,5,,,' is not a sample"),
    ],
)
def test_a_corrupt_file_is_one_line_that_names_file_and_line(tmp_path: Path, text: str, names: str) -> None:
    path = tmp_path / "nvml_node0.csv"
    path.write_text(text)
    with one_line(start=f"{path}: {names}"):
        list(read_samples(path))


def test_a_file_of_other_bytes_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "nvml_node0.csv"
    path.write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(UserError, match=r"nvml_node0.csv: not readable as NVML samples"):
        list(read_samples(path))
