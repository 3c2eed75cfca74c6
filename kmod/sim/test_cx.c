/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "../core/cx.h"
#include "test.h"

static struct cc_conn opened(const char *text, struct cc_ack *a)
{
	struct cc_conn conn = test_conn(text, a);
	struct cc_out out;

	cc_call_event(&conn, CC_EVENT_OPEN, a, &out);
	return conn;
}

/* betao 2000, del_th 4000, del_max 15000, p_max 1000, p_min 0, power 4 */
static void the_curve_at_its_corners_and_midpoints(void)
{
	struct cc_cx_state st = {.betao_us = 2000, .del_th_us = 4000, .del_max_us = 15000};
	struct cc_cx_params p = cc_cx_defaults;

	CHECK_EQ(cc_cx_curve(&st, &p, 0), 0);
	CHECK_EQ(cc_cx_curve(&st, &p, 2000), 0);	/* betao */
	CHECK_EQ(cc_cx_curve(&st, &p, 3000), 500);	/* midpoint of A: p_max / 2 */
	CHECK_EQ(cc_cx_curve(&st, &p, 3999), 999);
	CHECK_EQ(cc_cx_curve(&st, &p, 4000), 1000);	/* del_th: p_max */
	CHECK_EQ(cc_cx_curve(&st, &p, 9500), 62);	/* midpoint of B: (1/2)^4 = 62.5/1000 */
	CHECK_EQ(cc_cx_curve(&st, &p, 15000), 0);	/* del_max: p_min */
	CHECK_EQ(cc_cx_curve(&st, &p, 0xffffffffu), 0);
	p.power = 1;
	CHECK_EQ(cc_cx_curve(&st, &p, 9500), 500);
	p.p_min = 100;
	CHECK_EQ(cc_cx_curve(&st, &p, 9500), 550);	/* 100 + 900 / 2 */
	CHECK_EQ(cc_cx_curve(&st, &p, 15000), 100);
	/* The page's 150000: at a full buffer (15 ms) fraction 924, 0.924^4 = 0.73, by steps 853, 788, 728 */
	p = cc_cx_defaults;
	st.del_max_us = 150000;
	CHECK_EQ(cc_cx_curve(&st, &p, 15000), 728);
}

/* p * minimum / current = 1000 * 100 / 400 = 250; a current deviation of 0 counts as 1; never above p_max */
static void deviation_scales_the_probability(void)
{
	struct cc_cx_state st = {.betao_us = 2000, .del_th_us = 4000, .del_max_us = 15000,
				 .mdev_min_us = 100};
	struct cc_cx_params p = cc_cx_defaults;

	p.mdev_scaling = 1;
	CHECK_EQ(cc_cx_probability(&st, &p, 4000, 400), 250);
	CHECK_EQ(cc_cx_probability(&st, &p, 4000, 0), 1000);
	st.mdev_min_us = 0;
	CHECK_EQ(cc_cx_probability(&st, &p, 4000, 0), 1000);
	st.mdev_min_us = CC_NO_RTT;
	CHECK_EQ(cc_cx_probability(&st, &p, 3000, 400), 1000);
}

/* srtt 13000 is q = 3000, p = 500: the draws 499 and 500 lie on either side. draw = random * 1000 / 2^32 */
static void the_draw_decides(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("cx15", &a);

	a.srtt_us = 13000;
	a.random = 0x80000000u;
	test_round(&conn, &a, 5, 13000);
	CHECK_EQ(test_stat(&conn, &a, "probability"), 500);
	CHECK_EQ(a.cwnd_pkts, 21);
	a.random = 0x7fffffffu;
	test_round(&conn, &a, 5, 13000);
	CHECK_EQ(a.cwnd_pkts, 10);
	CHECK_EQ(test_stat(&conn, &a, "backoffs"), 1);
}

/* q = 4000 has p = 1000, but no ACK in this round is beyond base + betao = 12000: grow */
static void without_a_marked_ack_there_is_no_cut(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("cx15", &a);

	a.srtt_us = 14000;
	test_round(&conn, &a, 5, 12000);
	CHECK_EQ(a.cwnd_pkts, 21);
	test_round(&conn, &a, 5, 12001);
	CHECK_EQ(a.cwnd_pkts, 10);
}

/* Two samples, both marked, p = 1000: too few for a decision, so Reno's share of a packet instead. */
static void two_samples_leave_it_to_reno(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("cx15", &a);

	a.srtt_us = 14000;
	test_round(&conn, &a, 2, 12001);
	CHECK_EQ(a.cwnd_pkts, 20);
	test_round(&conn, &a, 3, 12001);
	CHECK_EQ(a.cwnd_pkts, 10);
}

/* alpha 256 cuts by half like the default; after an unmarked round it is 240: 20 - 20 * 240 / 512 -> 10 */
static void fractional_cuts_by_alpha(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("cx15,fractional=1", &a);

	a.srtt_us = 14000;
	test_round(&conn, &a, 5, 11000);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 240);
	a.cwnd_pkts = 100;
	/* (15 * 240 + 256) >> 4 = 241; 100 - 100 * 241 / 512 = 52.9 */
	test_round(&conn, &a, 5, 12001);
	CHECK_EQ(a.cwnd_pkts, 52);
}

/* q = 3000: p = 500 of 1000, so 4 marked of 4 count as 2: (15 * 256 + 128) >> 4 = 248 */
static void gradual_marking_weighs_marks_below_del_th(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("cx15,gradual_mark=1", &a);

	a.srtt_us = 13000;
	test_round(&conn, &a, 4, 13000);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 248);
}

static void a_round_without_samples_changes_nothing(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("cx15", &a);

	a.srtt_us = 14000;
	a.mdev_us = 0;
	test_round(&conn, &a, 0, 0);
	CHECK_EQ(a.cwnd_pkts, 20);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 256);
}

/* srtt below the base, which may come from a later sample: q saturates at 0 */
static void a_delay_below_the_base_is_no_delay(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("cx15", &a);

	a.srtt_us = 9000;
	test_round(&conn, &a, 5, 12001);
	CHECK_EQ(test_stat(&conn, &a, "queue_us"), 0);
	CHECK_EQ(a.cwnd_pkts, 21);
}

/*
 * cwnd and shadow start at 20. A cut at max RTT 20000 (q = 10000 > del_th) keeps 20 in the shadow and cwnd goes
 * to 10. Two rounds that grow: 12 and 22. Loss at srtt 20000: max(12, 22) / 2 = 11, shadow 11.
 */
static void a_loss_restores_from_the_shadow(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("cx15_shadow", &a);

	a.srtt_us = 14000;
	test_round(&conn, &a, 5, 20000);
	CHECK_EQ(a.cwnd_pkts, 10);
	CHECK_EQ(test_stat(&conn, &a, "shadow_pkts"), 20);
	CHECK_EQ(test_stat(&conn, &a, "competing"), 1);
	a.srtt_us = 26000; /* beyond del_max: p = 0, the window grows */
	test_round(&conn, &a, 5, 26000);
	test_round(&conn, &a, 5, 26000);
	CHECK_EQ(a.cwnd_pkts, 12);
	CHECK_EQ(test_stat(&conn, &a, "shadow_pkts"), 22);
	CHECK_EQ(cc_call_loss(&conn, &a), 11);
	CHECK_EQ(test_stat(&conn, &a, "shadow_pkts"), 11);
}

/* The same without shadow, and with a queue that has drained (competing ends at max RTT <= base + del_th). */
static void without_competition_a_loss_is_reno(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("cx15", &a);

	a.srtt_us = 14000;
	test_round(&conn, &a, 5, 20000);
	CHECK_EQ(cc_call_loss(&conn, &a), 5);
	a = test_ack();
	conn = opened("cx15_shadow", &a);
	a.srtt_us = 14000;
	test_round(&conn, &a, 5, 20000);
	a.srtt_us = 12000;
	test_round(&conn, &a, 5, 14000);
	CHECK_EQ(test_stat(&conn, &a, "competing"), 0);
	CHECK_EQ(a.cwnd_pkts, 11);
	a.srtt_us = 20000;
	CHECK_EQ(cc_call_loss(&conn, &a), 5);
}

/* Second cut at no larger a queue, without competition: the shadow is dropped. */
static void a_shrinking_queue_drops_the_shadow(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("cx15_shadow", &a);

	a.srtt_us = 14000;
	test_round(&conn, &a, 5, 13500); /* q 3500 > 0 before: kept */
	CHECK_EQ(test_stat(&conn, &a, "shadow_pkts"), 20);
	test_round(&conn, &a, 5, 13500); /* not larger: dropped */
	CHECK_EQ(test_stat(&conn, &a, "shadow_pkts"), 0);
}

static void a_timeout_forgets_the_shadow(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("cx15_shadow", &a);
	struct cc_out out;

	a.srtt_us = 14000;
	test_round(&conn, &a, 5, 20000);
	cc_call_event(&conn, CC_EVENT_RTO, &a, &out);
	CHECK_EQ(test_stat(&conn, &a, "shadow_pkts"), 0);
	CHECK_EQ(test_stat(&conn, &a, "competing"), 0);
}

static void wrong_parameters_are_refused_by_name(void)
{
	test_refused("cx,del_th=2000", "cx: parameter del_th = 2000: must exceed betao");
	test_refused("cx,del_max=4000", "cx: parameter del_max = 4000: must exceed del_th");
	test_refused("cx,p_max=10,p_min=11", "cx: parameter p_min = 11: must not exceed p_max");
	test_refused("cx,power=9", "cx: parameter power = 9: allowed are 1 to 8 (exponent)");
	test_refused("cx,mdev_scaling=2", "cx: parameter mdev_scaling = 2: allowed are 0 to 1 (flag)");
	test_refused("cx,shadow_cap=2", "cx: parameter shadow_cap = 2: needs shadow = 1");
}

int main(void)
{
	the_curve_at_its_corners_and_midpoints();
	deviation_scales_the_probability();
	the_draw_decides();
	without_a_marked_ack_there_is_no_cut();
	two_samples_leave_it_to_reno();
	fractional_cuts_by_alpha();
	gradual_marking_weighs_marks_below_del_th();
	a_round_without_samples_changes_nothing();
	a_delay_below_the_base_is_no_delay();
	a_loss_restores_from_the_shadow();
	without_competition_a_loss_is_reno();
	a_shrinking_queue_drops_the_shadow();
	a_timeout_forgets_the_shadow();
	test_reductions_forget_credits("cx");
	wrong_parameters_are_refused_by_name();
	return test_done("cx");
}
