#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Compares every core, run as BPF in this kernel, with the golden files. Needs root, clang and libbpf.so.1.

Loads each core as a program of type syscall (the verifier checks it), feeds it the inputs of every row and
compares every output. Also limits how many instructions the verifier follows. Usage: bpf_agree.py CCSIM CLANG

bpf_agree.py CCSIM --rows FILE instead writes the golden rows for module ccb_agree (tests/vm). It needs none of the above.
"""
import csv
import ctypes
import glob
import io
import os
import re
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CALLS = {"init": 0, "sample": 1, "ack": 2, "loss": 3, "undo": 5}
EVENTS = ["open", "disorder", "cwr", "recovery", "losing", "restart", "tx_start", "rto"]
SET_PARAMS = 6
ACK_FIELDS = 27  # u32 fields of struct cc_ack, after its two u64
CALL = struct.Struct(f"<II QQ {ACK_FIELDS}I 4x QIII 4x 32I")
VERIFIER_LIMIT = 100_000  # instructions followed; the kernel's own limit is a million


class RunOptions(ctypes.Structure):
    _fields_ = [(n, t) for n, t in [
        ("size", ctypes.c_size_t), ("data_in", ctypes.c_void_p), ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32), ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p), ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32), ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32), ("repeat", ctypes.c_int), ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32), ("cpu", ctypes.c_uint32), ("batch_size", ctypes.c_uint32)]]


def libbpf():
    lib = ctypes.CDLL("libbpf.so.1", use_errno=True)
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    for name, result, arguments in [
            ("bpf_object__open_file", pointer, [text, pointer]),
            ("bpf_object__load", ctypes.c_int, [pointer]),
            ("bpf_object__find_program_by_name", pointer, [pointer, text]),
            ("bpf_program__set_log_level", ctypes.c_int, [pointer, ctypes.c_uint32]),
            ("bpf_program__set_log_buf", ctypes.c_int, [pointer, text, size]),
            ("bpf_program__fd", ctypes.c_int, [pointer]),
            ("bpf_prog_test_run_opts", ctypes.c_int, [ctypes.c_int, pointer])]:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class Program:
    """A loaded core. Its memory lives as long as this process."""

    def __init__(self, lib, clang, core, directory):
        self.lib, path = lib, os.path.join(directory, core + ".o")
        subprocess.check_call([clang, "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-fno-strict-aliasing",
                               f"-DNAME={core}", "-c", "-o", path, os.path.join(HERE, "bpf_agree.bpf.c")])
        opened = lib.bpf_object__open_file(path.encode(), None)
        program = lib.bpf_object__find_program_by_name(opened, b"agree")
        log = ctypes.create_string_buffer(1 << 16)
        lib.bpf_program__set_log_level(program, 4)  # statistics only
        lib.bpf_program__set_log_buf(program, log, len(log))
        if lib.bpf_object__load(opened):
            sys.exit(f"bpf: {core}: the verifier rejects it: {log.value.decode()[-2000:]}")
        self.fd = lib.bpf_program__fd(program)
        self.followed = int(re.search(r"processed (\d+) insns", log.value.decode()).group(1))
        if self.followed > VERIFIER_LIMIT:
            sys.exit(f"bpf: {core}: the verifier follows {self.followed} instructions; the limit is {VERIFIER_LIMIT}")

    def call(self, kind, event, now_us, pacing, ack, values):
        values = values + [0] * (32 - len(values))
        context = ctypes.create_string_buffer(
            CALL.pack(kind, event, now_us, pacing, *ack, 0, 0, 0, 0, *values), CALL.size)
        options = RunOptions(size=ctypes.sizeof(RunOptions), ctx_in=ctypes.addressof(context),
                             ctx_size_in=CALL.size)
        if self.lib.bpf_prog_test_run_opts(self.fd, ctypes.byref(options)):
            sys.exit(f"bpf: run failed: {os.strerror(ctypes.get_errno())}")
        out = CALL.unpack(context.raw)[4 + ACK_FIELDS:]
        pacing, cwnd, ssthresh, flags = out[:4]
        return [cwnd, ssthresh, pacing, flags, *out[4:]]


def table(ccsim, command):
    return list(csv.DictReader(io.StringIO(subprocess.check_output([ccsim, command], text=True))))


def parameters(scheme, cores, schemes):
    """Returns the core and the ordered parameter values of a golden file's "ta_per,P1=10"."""
    name, _, given = scheme.partition(",")
    core, preset = schemes.get(name, (name, ""))
    values = {row["parameter"]: int(row["default"]) for row in cores if row["core"] == core}
    for text in filter(None, (preset + "," + given).split(",")):
        key, _, value = text.partition("=")
        values[key] = int(value)
    return core, list(values.values())


def golden(ccsim):
    """Yields for each golden file: its path, core, parameters, and rows of line, kind, event, now, pacing, ack, outputs."""
    cores = table(ccsim, "params")
    schemes = {row["scheme"]: (row["core"], row["parameters"]) for row in table(ccsim, "schemes")}
    for path in sorted(glob.glob(os.path.join(HERE, "golden", "*.csv"))):
        with open(path, encoding="ascii") as file:
            lines = file.read().splitlines()
        core, values = parameters(lines[0].removeprefix("# cc "), cores, schemes)
        first_out, rows = lines[1].split(",").index("to_cwnd_pkts"), []
        for number, line in enumerate(lines[2:], 3):
            name, *numbers = line.split(",")
            numbers = [int(text) for text in numbers]
            kind, event = (CALLS[name], 0) if name in CALLS else (4, EVENTS.index(name))
            rows.append((number, kind, event, *numbers[:2], numbers[2:first_out - 1], numbers[first_out - 1:]))
        yield path, core, values, rows


def write_rows(ccsim, target):
    """Writes rows as struct call of bpf_agree.bpf.c, with the expected outputs; a call of kind PARAMS names the core."""
    cores = list(dict.fromkeys(row["core"] for row in table(ccsim, "params")))

    def padded(values):
        return values + [0] * (32 - len(values))
    with open(target, "wb") as file:
        for _, core, values, rows in golden(ccsim):
            file.write(CALL.pack(SET_PARAMS, cores.index(core), 0, 0, *[0] * ACK_FIELDS, 0, 0, 0, 0, *padded(values)))
            for _, kind, event, now_us, pacing, ack, want in rows:
                cwnd, ssthresh, to_pacing, flags, *stats = want
                file.write(CALL.pack(kind, event, now_us, pacing, *ack, to_pacing, cwnd, ssthresh, flags,
                                     *padded(stats)))


def main():
    if len(sys.argv) == 4 and sys.argv[2] == "--rows":
        return write_rows(sys.argv[1], sys.argv[3])
    if len(sys.argv) != 3 or os.geteuid() != 0:
        sys.exit("usage, as root: bpf_agree.py CCSIM CLANG")
    ccsim, clang = sys.argv[1:]
    lib, programs, calls = libbpf(), {}, 0
    with tempfile.TemporaryDirectory() as directory:
        for path, core, values, rows in golden(ccsim):
            if core not in programs:
                programs[core] = Program(lib, clang, core, directory)
            program = programs[core]
            program.call(SET_PARAMS, 0, 0, 0, [0] * ACK_FIELDS, values)
            for number, kind, event, now_us, pacing, ack, want in rows:
                got = program.call(kind, event, now_us, pacing, ack, [])[:len(want)]
                calls += 1
                if got != want:
                    sys.exit(f"{path}:{number}: BPF returns {got}, the host {want}")
    followed = ", ".join(f"{core} {program.followed}" for core, program in programs.items())
    print(f"bpf: {calls} calls agree with the host's; instructions followed by the verifier: {followed}")


main()
