/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The shape of experiment E1: full length, mean of two seeds. The bounds are those of the tests on the real testbed (goodput against the
 * fair shares 47.8, 47.8 and 86.9 Mbit/s; RTT in ms). Other bounds have their reason beside them.
 */
#include "e1.h"
#include "test.h"

#define PHASE_US 60000000ull
#define TRIALS 2u

enum { ONE, FIVE, TEN };
static const u32 shapes[3][2] = {{1, 1}, {5, 5}, {10, 1}};
static const u32 fair_kbps[3] = {47800, 47800, 86900};

struct row {
	const char *scheme;
	struct e1_cell cell[3];
	u32 share_pct[3]; /* of the fair share, second phase */
};

static struct row measure(const char *scheme)
{
	struct row row = {.scheme = scheme};
	u32 shape, trial, k;

	for (shape = 0; shape < 3; shape++) {
		u32 *sum = (u32 *)&row.cell[shape];

		for (trial = 1; trial <= TRIALS; trial++) {
			struct e1_cell one;

			e1_run(scheme, shapes[shape][0], shapes[shape][1], PHASE_US, trial, &one);
			for (k = 0; k < sizeof(one) / sizeof(u32); k++)
				sum[k] += ((u32 *)&one)[k];
		}
		for (k = 0; k < sizeof(struct e1_cell) / sizeof(u32); k++)
			sum[k] /= TRIALS;
		row.share_pct[shape] = row.cell[shape].goodput_kbps[1] / (fair_kbps[shape] / 100);
	}
	return row;
}

static void bound(const struct row *row, u32 shape, const char *what, u32 value, u32 low, u32 high)
{
	checks_done++;
	if (value >= low && value <= high)
		return;
	fprintf(stderr, "e1: %s %uv%u: %s is %u, not from %u to %u\n", row->scheme, shapes[shape][0],
		shapes[shape][1], what, value, low, high);
	exit(1);
}

#define SHARE(row, shape, low, high) bound(&(row), shape, "share in %", (row).share_pct[shape], low, high)
#define R1(row, shape, low, high) bound(&(row), shape, "phase 1 us", (row).cell[shape].srtt_us[0], low, high)
#define R3(row, shape, low, high) bound(&(row), shape, "settled us", (row).cell[shape].settled_us, low, high)

/* A full link when alone, a queue while competing, no timeouts. */
static void common(const struct row *row, u32 min_kbps)
{
	u32 shape;

	for (shape = 0; shape < 3; shape++) {
		const struct e1_cell *c = &row->cell[shape];

		bound(row, shape, "phase 1 kbit/s", c->goodput_kbps[0], min_kbps, 95700);
		bound(row, shape, "phase 3 kbit/s", c->goodput_kbps[2], min_kbps, 95700);
		/* A full queue is 25 ms. The srtt of a starved flow, whose packets are 5 ms apart, includes delayed ACKs. */
		bound(row, shape, "phase 2 us", c->srtt_us[1], 15000, 31000);
		/* There is no tail loss probe. */
		bound(row, shape, "timeouts", c->timeouts, 0, 1);
	}
}

int main(void)
{
	struct row vegas = measure("vegas"), ta = measure("ta"), grad = measure("ta_grad");
	struct row per = measure("ta_per"), cx = measure("cx"), rttvar = measure("cx_rttvar");
	struct row shadow = measure("cx_shadow");
	u32 shape;

	common(&vegas, 75000);
	common(&ta, 75000);
	common(&grad, 75000);
	common(&per, 75000);
	/* 70 on the testbed: when the bursts of ten unpaced flows meet, all of them see delay. */
	common(&cx, 65000);
	common(&rttvar, 65000);
	common(&shadow, 65000);

	SHARE(vegas, ONE, 0, 25);
	SHARE(vegas, FIVE, 0, 60);
	SHARE(vegas, TEN, 0, 75);
	R3(vegas, ONE, 10000, 15000);
	R3(vegas, FIVE, 10000, 18000);

	SHARE(ta, ONE, 50, 200);
	SHARE(ta, FIVE, 40, 200);
	SHARE(ta, TEN, 60, 200);
	for (shape = 0; shape < 3; shape++) {
		SHARE(ta, shape, vegas.share_pct[shape] + 1, 200);
		R3(ta, shape, 17000, 26500);
	}

	SHARE(grad, ONE, 30, 200);
	SHARE(grad, FIVE, 40, 200);
	SHARE(grad, TEN, 50, 200);
	R3(grad, ONE, 10000, 15000);
	R3(grad, FIVE, 10000, 17000);
	R3(grad, TEN, 16000, 26500);

	SHARE(per, ONE, 30, 200);
	SHARE(per, FIVE, 40, 200);
	SHARE(per, TEN, 60, 200);
	R3(per, ONE, 10000, 16000);
	R3(per, FIVE, 17000, 26500);
	R3(per, TEN, 17000, 26500);

	SHARE(cx, ONE, 0, 30);
	for (shape = 0; shape < 3; shape++) {
		R1(cx, shape, 10000, shape == TEN ? 14000 : 13000);
		R3(cx, shape, 10000, shape == ONE ? 13000 : 14000);
		SHARE(rttvar, shape, 2 * cx.share_pct[shape] + 1, 200);
		SHARE(shadow, shape, cx.share_pct[shape], cx.share_pct[shape] + 15);
		R1(shadow, shape, 10000, shape == ONE ? 13000 : 14000);
	}
	R1(rttvar, FIVE, cx.cell[FIVE].srtt_us[0] + 2000, 26500);
	R1(rttvar, TEN, cx.cell[TEN].srtt_us[0] + 2000, 26500);
	return test_done("e1");
}
