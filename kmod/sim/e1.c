/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "e1.h"

#include <stdlib.h>
#include <string.h>

#include "sim.h"

static const u32 shapes[3][2] = {{1, 1}, {5, 5}, {10, 1}};

struct watch {
	u64 phase_us;
	u32 flows;
	u64 bytes_at[4][2]; /* delivered by the scheme and by the competitors at the end of each phase; [0] is the start */
	u64 srtt_sum[4], srtt_count[4];
};

static void watch(void *context, u64 now_us, struct sim *sim)
{
	struct watch *w = context;
	u64 phase = (now_us - 1) / w->phase_us;
	u64 bytes[2] = {0, 0};
	u32 i;

	for (i = 0; i < sim_flow_count(sim); i++) {
		struct sim_flow_view v = sim_view(sim, i);

		bytes[i >= w->flows] += v.delivered_pkts * SIM_MSS;
		if (i >= w->flows || phase > 2 || !v.srtt_us)
			continue;
		w->srtt_sum[phase] += v.srtt_us;
		w->srtt_count[phase]++;
		if (phase == 2 && now_us > 3 * w->phase_us - w->phase_us / 3) {
			w->srtt_sum[3] += v.srtt_us;
			w->srtt_count[3]++;
		}
	}
	if (now_us % w->phase_us == 0 && now_us / w->phase_us <= 3)
		memcpy(w->bytes_at[now_us / w->phase_us], bytes, sizeof(bytes));
}

void e1_run(const char *scheme, u32 flows, u32 competitors, u64 phase_us, u64 seed, struct e1_cell *cell)
{
	struct sim_path path = {100000000, 10000, 187500, 0, 50, seed};
	struct watch w = {.phase_us = phase_us, .flows = flows};
	struct sim_observer observer = {.context = &w, .sample_us = 100000, .sample = watch};
	struct sim *sim = sim_new(&path, &observer);
	struct sim_flow_config config;
	char message[256];
	u64 starts = seed * 7919 + 1;
	u32 i;

	for (i = 0; i < flows + competitors; i++) {
		int is_tested = i < flows;

		memset(&config, 0, sizeof(config));
		if (cc_conn_parse(&config.conn, is_tested ? scheme : "cubic", message, sizeof(message))) {
			fprintf(stderr, "e1: %s\n", message);
			exit(2);
		}
		config.start_us = (is_tested ? 0 : phase_us) + cc_random(&starts) % 10000;
		config.stop_us = (is_tested ? 3 : 2) * phase_us;
		sim_add(sim, &config);
	}
	sim_run(sim, 3 * phase_us);
	memset(cell, 0, sizeof(*cell));
	for (i = 0; i < 3; i++) {
		cell->goodput_kbps[i] = (u32)((w.bytes_at[i + 1][0] - w.bytes_at[i][0]) * 8000 / phase_us);
		cell->srtt_us[i] = (u32)(w.srtt_sum[i] / (w.srtt_count[i] ? w.srtt_count[i] : 1));
	}
	cell->competitor_kbps = (u32)((w.bytes_at[2][1] - w.bytes_at[1][1]) * 8000 / phase_us);
	cell->settled_us = (u32)(w.srtt_sum[3] / (w.srtt_count[3] ? w.srtt_count[3] : 1));
	for (i = 0; i < flows; i++)
		cell->timeouts += sim_view(sim, i).timeouts;
	sim_free(sim);
}

static void mean(struct e1_cell *sum, u32 trials)
{
	u32 *value = (u32 *)sum, i;

	for (i = 0; i < sizeof(*sum) / sizeof(u32); i++)
		value[i] /= trials;
}

static void print_cell(const char *scheme, u32 shape, const struct e1_cell *c)
{
	printf("%-14s %2uv%u  %5.1f @ %4.1f   %5.1f / %5.1f @ %4.1f   %5.1f @ %4.1f   %4.1f   %u\n", scheme,
	       shapes[shape][0], shapes[shape][1], c->goodput_kbps[0] / 1e3, c->srtt_us[0] / 1e3,
	       c->goodput_kbps[1] / 1e3, c->competitor_kbps / 1e3, c->srtt_us[1] / 1e3,
	       c->goodput_kbps[2] / 1e3, c->srtt_us[2] / 1e3, c->settled_us / 1e3, c->timeouts);
}

int e1_table(u64 phase_us, u32 trials, const char *scheme)
{
	u32 count, i, shape, trial;
	const struct cc_scheme *all = cc_schemes(&count);

	if (!trials || phase_us < 1000000 || phase_us % 100000) {
		fprintf(stderr, "e1: trials from 1, phase_us from 1000000 in steps of 100000\n");
		return 2;
	}
	printf("goodput in Mbit/s @ mean srtt in ms; phases of %u s, %u trial(s)\n"
	       "scheme         case  phase 1        phase 2 (/ cubic)        phase 3        last third  RTOs\n",
	       (u32)(phase_us / 1000000), trials);
	for (i = 0; i < (scheme ? 1 : count); i++)
		for (shape = 0; shape < 3; shape++) {
			struct e1_cell sum = {0}, one;
			u32 k;

			for (trial = 1; trial <= trials; trial++) {
				e1_run(scheme ? scheme : all[i].name, shapes[shape][0], shapes[shape][1], phase_us,
				       trial, &one);
				for (k = 0; k < sizeof(sum) / sizeof(u32); k++)
					((u32 *)&sum)[k] += ((u32 *)&one)[k];
			}
			mean(&sum, trials);
			print_cell(scheme ? scheme : all[i].name, shape, &sum);
		}
	return 0;
}
