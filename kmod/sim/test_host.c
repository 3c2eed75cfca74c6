/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Checks of every core and scheme: valid kernel names, consistent tables, rejected parameters. */
#include "test.h"

#define NAME_MAX 15u /* TCP_CA_NAME_MAX without its end; schemes get the prefix "ccb_" */

static void every_scheme_is_accepted_and_fits_the_kernels_name(void)
{
	u32 count, i;
	const struct cc_scheme *all = cc_schemes(&count);
	struct cc_ack a = test_ack();

	for (i = 0; i < count; i++) {
		CHECK(strlen(all[i].name) + 4 <= NAME_MAX);
		test_conn(all[i].name, &a);
	}
}

static void every_default_is_within_its_range(void)
{
	u32 count, i, k;
	const struct cc_ops *const *all = cc_all(&count);
	struct cc_fault fault;

	for (i = 0; i < count; i++) {
		CHECK(all[i]->state_bytes <= (all[i]->wants & CC_WANTS_STORAGE ? CC_STORAGE_BYTES : CC_STATE_BYTES));
		CHECK_EQ((u32)all[i]->check(all[i]->defaults, &fault), 0);
		for (k = 0; k < all[i]->param_count; k++) {
			CHECK_EQ(all[i]->defaults[k], all[i]->params[k].default_value);
			CHECK(all[i]->params[k].min <= all[i]->params[k].max);
		}
	}
}

static void no_name_comes_twice(void)
{
	u32 count, i, k, j;
	const struct cc_ops *const *all = cc_all(&count);

	for (i = 0; i < count; i++) {
		for (k = 0; k < all[i]->param_count; k++)
			for (j = 0; j < k; j++)
				CHECK(strcmp(all[i]->params[k].name, all[i]->params[j].name));
		for (k = 0; k < all[i]->stat_count; k++)
			for (j = 0; j < k; j++)
				CHECK(strcmp(all[i]->stats[k].name, all[i]->stats[j].name));
	}
}

/* A value just beyond either end of a range is rejected, with the parameter's own name. */
static void beyond_either_end_is_refused_by_name(void)
{
	u32 count, i, k, side;
	const struct cc_ops *const *all = cc_all(&count);

	for (i = 0; i < count; i++)
		for (k = 0; k < all[i]->param_count; k++)
			for (side = 0; side < 2; side++) {
				const struct cc_param *p = &all[i]->params[k];
				u32 values[CC_PARAMS_MAX], beyond = side ? p->max + 1 : p->min - 1;
				struct cc_fault fault = {0};

				if (!side && !p->min)
					continue;
				memcpy(values, all[i]->defaults, all[i]->param_count * sizeof(u32));
				values[k] = beyond;
				CHECK(all[i]->check(values, &fault) != 0);
				CHECK(!strcmp(fault.name, p->name));
				CHECK_EQ(fault.value, beyond);
			}
}

/* u32 helpers at their edges. */
static void helpers_saturate_and_wrap(void)
{
	struct cc_ack a = test_ack();

	CHECK_EQ(cc_scale(0xffffffffu, 0xffffffffu, 1), 0xffffffffu);
	CHECK_EQ(cc_scale(7, 3, 2), 10);
	CHECK_EQ(cc_scale(1, 1, 0), 0xffffffffu);
	CHECK_EQ(cc_saturating_sub(3, 5), 0);
	CHECK(cc_after(5, 0xfffffff0u) && !cc_after(0xfffffff0u, 5) && !cc_after(5, 5));
	CHECK(!cc_after(0x80000000u, 0)); /* half the space away is not after */
	CHECK_EQ(cc_half(3), 2);
	a.cwnd_clamp_pkts = 0;
	CHECK_EQ(cc_bound_cwnd(&a, 100), 2);
	a.cwnd_clamp_pkts = 0xffffffffu;
	CHECK_EQ(cc_bound_cwnd(&a, (u64)1 << 40), CC_INFINITE);
}

/* 3 acked at cwnd 9, ssthresh 10: one up to ssthresh, two towards the next packet; eight more complete it. */
static void slow_start_leaves_its_rest_to_avoidance(void)
{
	struct cc_ack a = test_ack();
	struct cc_out out;
	u32 count = 0;

	a.cwnd_pkts = 9;
	a.acked_pkts = 3;
	cc_keep(&a, &out);
	cc_reno_increase(&count, &a, &out);
	CHECK_EQ(out.cwnd_pkts, 10);
	CHECK_EQ(count, 2);
	a.acked_pkts = 8;
	cc_reno_increase(&count, &a, &out);
	CHECK_EQ(out.cwnd_pkts, 11);
	CHECK_EQ(count, 0);
	a.flags = 0;
	cc_reno_increase(&count, &a, &out);
	CHECK_EQ(count, 0);
}

int main(void)
{
	every_scheme_is_accepted_and_fits_the_kernels_name();
	every_default_is_within_its_range();
	no_name_comes_twice();
	beyond_either_end_is_refused_by_name();
	helpers_saturate_and_wrap();
	slow_start_leaves_its_rest_to_avoidance();
	return test_done("host");
}
