/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* For the objects of cc_cost.sh besides ccbench's own: what the loader patches and reads in every object. It is not used here. */
#include "../../kmod/bpf/kernel.bpf.h"

char _license[] SEC("license") = "GPL";

#define KFUNC __attribute__((section(".ksyms")))

struct {
	u64 netns_cookie;
	u32 record, row_gap_us, params_count;
} ccb_config SEC(".rodata.ccb");

struct {
	int (*type)[27]; /* BPF_MAP_TYPE_RINGBUF */
	int (*max_entries)[4096];
} ccb_rows SEC(".maps");
