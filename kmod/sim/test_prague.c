/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "../core/prague.h"
#include "test.h"

static struct cc_ack ecn_ack(void)
{
	struct cc_ack a = test_ack();

	a.flags |= CC_ECN;
	return a;
}

/* One ACK of `acked` packets, `marked` of them with CE. cwnd and ssthresh follow. */
static struct cc_out ack(struct cc_conn *conn, struct cc_ack *a, u32 acked, u32 marked)
{
	struct cc_out out;

	a->acked_pkts = acked;
	a->delivered_pkts += acked;
	a->delivered_ce_pkts += marked;
	a->una_seq += acked * a->mss_bytes;
	cc_call_ack(conn, a, &out);
	a->cwnd_pkts = out.cwnd_pkts;
	a->ssthresh_pkts = out.ssthresh_pkts;
	a->nxt_seq = a->una_seq + a->cwnd_pkts * a->mss_bytes;
	return out;
}

static void event(struct cc_conn *conn, struct cc_ack *a, u32 what)
{
	struct cc_out out;

	cc_call_event(conn, what, a, &out);
	a->cwnd_pkts = out.cwnd_pkts;
	a->ssthresh_pkts = out.ssthresh_pkts;
	if (what <= CC_EVENT_LOSS)
		a->ca_state = what;
}

/* A round of 40 packets in one ACK. */
static void round_of(struct cc_conn *conn, struct cc_ack *a, u32 marked)
{
	a->now_us += a->srtt_us;
	a->una_seq = a->nxt_seq + 1 - 40 * a->mss_bytes;
	CHECK_EQ(ack(conn, a, 40, marked).flags, CC_OUT_ROUND);
}

/* alpha = 1 - (15/16)^n of 2^20, n fully marked rounds from 0; exact in 16^n up to n = 10 */
static void alpha_after_fully_marked_rounds(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("prague,rtt_target_us=0", &a);
	u64 all = 1, unmarked = 1;
	u32 i, got, want;

	for (i = 0; i < 10; i++) {
		round_of(&conn, &a, 40);
		all *= 16;
		unmarked *= 15;
		got = test_stat(&conn, &a, "alpha");
		want = (u32)(((all - unmarked) << 20) / all);
		CHECK(got <= want + 1 && got + 1 >= want);
	}
	CHECK(test_stat(&conn, &a, "alpha") > 498000);
}

/* Not before the first mark: alpha_init 1 stays at 1 in unmarked rounds. */
static void alpha_waits_for_the_first_mark(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("prague,rtt_target_us=0,alpha_init=1", &a);

	round_of(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 1048576);
	round_of(&conn, &a, 1);
	CHECK(test_stat(&conn, &a, "alpha") < 1048576);
}

/* cwnd 20 -> 10; the window itself goes down by one packet per packet acked */
static void the_first_mark_halves(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("prague", &a);

	a.ssthresh_pkts = CC_INFINITE;
	event(&conn, &a, CC_EVENT_CWR);
	ack(&conn, &a, 1, 1);
	CHECK_EQ(test_stat(&conn, &a, "frac_cwnd_milli"), 10000);
	CHECK_EQ(a.cwnd_pkts, 19);
	CHECK_EQ(a.ssthresh_pkts, 10);
	ack(&conn, &a, 4, 4);
	CHECK_EQ(a.cwnd_pkts, 15);
	CHECK_EQ(test_stat(&conn, &a, "reductions"), 1);
}

/* alpha 1: 20 - 20/2. Within rtt_target again, once RTT-independent: no cut. After it: 10 - 5. */
static void a_cut_per_rtt_target(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("prague,alpha_init=1,rtt_transition=0", &a);

	event(&conn, &a, CC_EVENT_CWR);
	CHECK_EQ(a.ssthresh_pkts, 10);
	a.now_us += 24999;
	event(&conn, &a, CC_EVENT_CWR);
	CHECK_EQ(a.ssthresh_pkts, 10);
	a.now_us += 1;
	event(&conn, &a, CC_EVENT_CWR);
	CHECK_EQ(a.ssthresh_pkts, 5);
}

/* (10000 / 25000)^2 = 0.16 packets per RTT, minus two roundings down; 1 at or above the target RTT, and before the transition */
static void a_short_rtt_grows_by_its_square(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("prague,rtt_transition=2", &a);

	round_of(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "increase_ppm"), 1000000);
	round_of(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "increase_ppm"), 159998);
	a.srtt_us = 25000;
	round_of(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "increase_ppm"), 1000000);
}

/* 20 unmarked packets at window 20: a little less than one packet (the window grows meanwhile) */
static void a_window_of_acks_adds_one_packet(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("prague,rtt_target_us=0", &a);
	u32 i;

	for (i = 0; i < 20; i++)
		ack(&conn, &a, 1, 0);
	CHECK(test_stat(&conn, &a, "frac_cwnd_milli") > 20970);
	CHECK(test_stat(&conn, &a, "frac_cwnd_milli") < 21000);
	CHECK_EQ(a.cwnd_pkts, 21);
}

static void marked_packets_do_not_grow_the_window(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("prague,alpha_init=1,rtt_target_us=0", &a);
	u32 i;

	for (i = 0; i < 10; i++)
		ack(&conn, &a, 1, 1);
	CHECK_EQ(test_stat(&conn, &a, "frac_cwnd_milli"), 20000);
}

static void a_loss_halves_and_holds_until_open(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("prague", &a);

	CHECK_EQ(cc_call_loss(&conn, &a), 10);
	event(&conn, &a, CC_EVENT_RECOVERY);
	CHECK_EQ(a.ssthresh_pkts, 10);
	ack(&conn, &a, 1, 0);
	CHECK_EQ(test_stat(&conn, &a, "frac_cwnd_milli"), 10000);
	event(&conn, &a, CC_EVENT_OPEN);
	ack(&conn, &a, 1, 0);
	CHECK(test_stat(&conn, &a, "frac_cwnd_milli") > 10000);
	CHECK_EQ(cc_call_undo(&conn, &a), 20);
	CHECK_EQ(test_stat(&conn, &a, "frac_cwnd_milli"), 20000);
}

/* ssthresh 10; the stack's window of 1 counts as 2, then slow start by one per ACK */
static void a_timeout_restarts_from_the_stacks_window(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("prague", &a);

	event(&conn, &a, CC_EVENT_RTO);
	event(&conn, &a, CC_EVENT_LOSS);
	a.cwnd_pkts = 1;
	ack(&conn, &a, 1, 0);
	CHECK_EQ(a.ssthresh_pkts, 10);
	CHECK_EQ(test_stat(&conn, &a, "frac_cwnd_milli"), 3000);
	ack(&conn, &a, 1, 0);
	CHECK_EQ(test_stat(&conn, &a, "frac_cwnd_milli"), 4000);
}

/* Without feedback: Reno's increase, even on a short RTT, unless fallback is 0 */
static void without_ecn_it_grows_as_reno(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = test_conn("prague,rtt_transition=0", &a);

	round_of(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "increase_ppm"), 1000000);
	conn = test_conn("prague,rtt_transition=0,fallback=0", &a);
	a.now_us += 25000;
	round_of(&conn, &a, 0);
	a.now_us += 25000;
	round_of(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "increase_ppm"), 159998);
}

/* Ten marked rounds with 11 ms of queue: the next mark halves the window although alpha is small. */
static void behind_a_classic_queue_fallback_2_halves(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("prague,fallback=2", &a);
	u32 i, before;

	a.srtt_us = 30000;
	a.rtt_min_us = 19000;
	for (i = 0; i < 10; i++)
		round_of(&conn, &a, 1);
	CHECK_EQ(test_stat(&conn, &a, "classic_rounds"), 10);
	before = test_stat(&conn, &a, "frac_cwnd_milli");
	event(&conn, &a, CC_EVENT_CWR);
	CHECK_EQ(test_stat(&conn, &a, "frac_cwnd_milli"), before / 2);
}

/* 20 * 1500 B in 10 ms = 3 000 000 B/s; twice that while cwnd < ssthresh / 2; 2^-12 s of it: less than a packet -> 1 */
static void pacing_follows_the_window(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("prague,rtt_target_us=0", &a);

	a.flags &= ~CC_CWND_LIMITED;
	CHECK_EQ(ack(&conn, &a, 1, 0).pacing_bytes_per_sec, 3000000);
	a.ssthresh_pkts = 42;
	CHECK_EQ(ack(&conn, &a, 1, 0).pacing_bytes_per_sec, 6000000);
	CHECK_EQ(cc_prague_burst_segs(&cc_prague_defaults, 3000000, 1500), 1);
	CHECK_EQ(cc_prague_burst_segs(&cc_prague_defaults, 125000000, 1500), 20);
}

/* Two packets of 1500 B per RTT, reduced by marks until pacing holds them. */
static struct cc_conn small(struct cc_ack *a)
{
	struct cc_conn conn;

	*a = ecn_ack();
	a->cwnd_pkts = 2;
	a->ssthresh_pkts = 2;
	a->srtt_us = 1000;
	a->inflight_pkts = 1;
	conn = test_conn("prague,alpha_init=1,rtt_transition=0", a);
	event(&conn, a, CC_EVENT_CWR);
	return conn;
}

/* alpha 1: 2 -> 1 packet in 1 ms is 1.5 MB/s, and the window stays at 2; then 0.5; at least 100 kbit/s */
static void below_two_packets_pacing_holds_the_flow(void)
{
	struct cc_ack a;
	struct cc_conn conn = small(&a);
	u32 i;

	CHECK_EQ(a.cwnd_pkts, 2);
	CHECK_EQ(a.ssthresh_pkts, 2);
	CHECK_EQ(ack(&conn, &a, 1, 1).pacing_bytes_per_sec, 1500000);
	a.now_us += 25000;
	event(&conn, &a, CC_EVENT_CWR);
	CHECK_EQ(test_stat(&conn, &a, "frac_cwnd_milli"), 500);
	CHECK_EQ(ack(&conn, &a, 1, 1).pacing_bytes_per_sec, 750000);
	for (i = 0; i < 20; i++) {
		a.now_us += 25000;
		event(&conn, &a, CC_EVENT_CWR);
	}
	CHECK_EQ(ack(&conn, &a, 1, 1).pacing_bytes_per_sec, 12501); /* the minimum window is rounded up */
	CHECK_EQ(a.cwnd_pkts, 2);
}

/* An RTT that grows with the gap between packets changes neither the rate nor its growth, (1/25)^2 packets per RTT. */
static void waiting_for_the_next_packet_does_not_slow_it(void)
{
	struct cc_ack a;
	struct cc_conn conn = small(&a);

	a.flags &= ~CC_CWND_LIMITED;
	a.srtt_us = 30000;
	a.now_us += 25000;
	a.una_seq = a.nxt_seq;
	ack(&conn, &a, 2, 2);
	CHECK_EQ(test_stat(&conn, &a, "increase_ppm"), 1599);
	CHECK_EQ(ack(&conn, &a, 2, 2).pacing_bytes_per_sec, 1500000);
	ack(&conn, &a, 4, 0);
	CHECK_EQ(test_stat(&conn, &a, "frac_cwnd_milli"), 1006);
	a.flags |= CC_APP_LIMITED;
	ack(&conn, &a, 4, 0);
	CHECK_EQ(test_stat(&conn, &a, "frac_cwnd_milli"), 1006);
}

/* Before the transition, one packet per RTT: half a window becomes 0.5 + 1, not 0.5 + 1 / 0.5. Then it is a window again. */
static void growth_of_a_small_window_is_bounded(void)
{
	struct cc_ack a;
	struct cc_conn conn;

	a = ecn_ack();
	a.cwnd_pkts = 2;
	a.ssthresh_pkts = 2;
	conn = test_conn("prague,alpha_init=1,rtt_target_us=0", &a);
	event(&conn, &a, CC_EVENT_CWR);
	event(&conn, &a, CC_EVENT_CWR);
	ack(&conn, &a, 1, 0);
	CHECK_EQ(test_stat(&conn, &a, "frac_cwnd_milli"), 1500);
	ack(&conn, &a, 1, 0);
	CHECK(test_stat(&conn, &a, "frac_cwnd_milli") > 2000);
	CHECK_EQ(ack(&conn, &a, 1, 1).cwnd_pkts, 3);
}

static void reno_stays_at_two_packets(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn;

	a.cwnd_pkts = 2;
	conn = test_conn("prague", &a);
	event(&conn, &a, CC_EVENT_RECOVERY);
	CHECK_EQ(test_stat(&conn, &a, "frac_cwnd_milli"), 2000);
}

static void wrong_parameters_are_refused_by_name(void)
{
	test_refused("prague,rtt_target_us=100001",
		     "prague: parameter rtt_target_us = 100001: allowed are 0 to 100000 (us)");
	test_refused("prague,alpha_shift=0", "prague: parameter alpha_shift = 0: allowed are 1 to 8 (shift)");
	test_refused("prague,fallback=3", "prague: parameter fallback = 3: allowed are 0 to 2 (mode)");
}

int main(void)
{
	alpha_after_fully_marked_rounds();
	alpha_waits_for_the_first_mark();
	the_first_mark_halves();
	a_cut_per_rtt_target();
	a_short_rtt_grows_by_its_square();
	a_window_of_acks_adds_one_packet();
	marked_packets_do_not_grow_the_window();
	a_loss_halves_and_holds_until_open();
	a_timeout_restarts_from_the_stacks_window();
	without_ecn_it_grows_as_reno();
	behind_a_classic_queue_fallback_2_halves();
	pacing_follows_the_window();
	below_two_packets_pacing_holds_the_flow();
	waiting_for_the_next_packet_does_not_slow_it();
	growth_of_a_small_window_is_bounded();
	reno_stays_at_two_packets();
	wrong_parameters_are_refused_by_name();
	return test_done("prague");
}
