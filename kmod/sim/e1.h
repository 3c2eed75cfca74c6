/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Experiment E1 in ccsim: N flows of a scheme for all three phases, M CUBIC flows in the second phase; 100 Mbit/s, FIFO of 187 500 bytes,
 * 10 ms.
 */
#ifndef CC_E1_H
#define CC_E1_H

#include "host.h"

struct e1_cell {
	u32 goodput_kbps[3];	   /* sum of the scheme's flows, per phase */
	u32 competitor_kbps;	   /* sum of the CUBIC flows, second phase */
	u32 srtt_us[3];		   /* mean of the scheme's flows */
	u32 settled_us;		   /* the same over the last third of the third phase */
	u32 timeouts;
};

/* Runs one trial of one cell. scheme is in the syntax of cc_conn_parse(). */
void e1_run(const char *scheme, u32 flows, u32 competitors, u64 phase_us, u64 seed, struct e1_cell *cell);

/* Prints the mean over trials of every cell. scheme null: the study's seven and their del_max variants. */
int e1_table(u64 phase_us, u32 trials, const char *scheme);

#endif
