/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "../core/dctcp.h"
#include "../core/echo.h"
#include "sim.h"
#include "test.h"

static struct cc_ack ecn_ack(void)
{
	struct cc_ack a = test_ack();

	a.flags |= CC_ECN;
	return a;
}

/* A window of 20 packets, `marked` of them with CE. */
static void window(struct cc_conn *conn, struct cc_ack *a, u32 marked)
{
	a->delivered_pkts += 20;
	a->delivered_ce_pkts += marked;
	a->una_seq = a->nxt_seq + 1;
	a->nxt_seq = a->una_seq + 20 * a->mss_bytes;
	CHECK_EQ(cc_call_sample(conn, a), CC_OUT_ROUND);
}

/* From 0: 1 - (15/16)^n = 64/1024, 124.0/1024, ... 486.9/1024 for n = 1, 2, 10; half marked adds half. */
static void alpha_follows_the_share_of_marks(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("dctcp,alpha_on_init=0", &a);
	u32 i;

	window(&conn, &a, 20);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 64);
	window(&conn, &a, 20);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 124);
	for (i = 0; i < 8; i++)
		window(&conn, &a, 20);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 486);
	conn = test_conn("dctcp,alpha_on_init=0", &a);
	window(&conn, &a, 10);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 32);
}

static void alpha_reaches_zero_and_one(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("dctcp", &a);
	u32 i;

	CHECK_EQ(test_stat(&conn, &a, "alpha"), 1024);
	for (i = 0; i < 300; i++)
		window(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 0);
	for (i = 0; i < 300; i++)
		window(&conn, &a, 20);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 1024);
}

/*
 * Bursts of ten packets with idle time before each: the first ACK is of two, the second one of the other eight, which have CE. The first
 * window has two packets, the others 10. 0.8/16 = 51.2/1024; 0.8 (1 - (15/16)^2) = 99.2/1024.
 */
static void marks_of_application_limited_bursts_raise_alpha(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn;
	struct cc_out out;
	u32 i;

	a.nxt_seq = a.una_seq;
	conn = test_conn("dctcp,alpha_on_init=0", &a);
	for (i = 0; i < 3; i++) {
		cc_call_event(&conn, CC_EVENT_RESTART, &a, &out);
		cc_call_event(&conn, CC_EVENT_TX_START, &a, &out);
		a.nxt_seq += 10 * a.mss_bytes;
		a.una_seq += 2 * a.mss_bytes;
		a.delivered_pkts += 2;
		CHECK_EQ(cc_call_sample(&conn, &a), CC_OUT_ROUND);
		a.una_seq = a.nxt_seq;
		a.delivered_pkts += 8;
		a.delivered_ce_pkts += 8;
		CHECK_EQ(cc_call_sample(&conn, &a), 0);
		CHECK_EQ(test_stat(&conn, &a, "ce_pkts"), i ? 8 : 0);
		CHECK_EQ(test_stat(&conn, &a, "alpha"), i == 2 ? 99 : i * 51);
	}
}

/* The running counts wrap like the kernel's. */
static void the_counts_may_wrap(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn;

	a.delivered_pkts = 0xfffffff8u;
	a.delivered_ce_pkts = 0xfffffffcu;
	conn = test_conn("dctcp,alpha_on_init=0", &a);
	window(&conn, &a, 10);
	CHECK_EQ(test_stat(&conn, &a, "acked_pkts"), 20);
	CHECK_EQ(test_stat(&conn, &a, "ce_pkts"), 10);
}

/* alpha 1: 20 - 10; alpha 512/1024: 20 - 5; alpha 0: 20. A loss leaves half, whatever alpha is. */
static void the_cut_is_half_of_alpha(void)
{
	struct cc_ack a = ecn_ack();
	struct cc_conn conn = test_conn("dctcp", &a);
	struct cc_out out;

	CHECK_EQ(cc_call_loss(&conn, &a), 10);
	conn = test_conn("dctcp,alpha_on_init=512", &a);
	CHECK_EQ(cc_call_loss(&conn, &a), 15);
	conn = test_conn("dctcp,alpha_on_init=0", &a);
	CHECK_EQ(cc_call_loss(&conn, &a), 20);
	cc_call_event(&conn, CC_EVENT_CWR, &a, &out);
	CHECK_EQ(out.ssthresh_pkts, a.ssthresh_pkts);
	cc_call_event(&conn, CC_EVENT_RECOVERY, &a, &out);
	CHECK_EQ(out.ssthresh_pkts, 10);
	a.cwnd_pkts = 10;
	CHECK_EQ(cc_call_undo(&conn, &a), 20);
	a.cwnd_pkts = 3;
	cc_call_event(&conn, CC_EVENT_RTO, &a, &out);
	CHECK_EQ(out.ssthresh_pkts, 2);
}

static void without_ecn_it_is_reno(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = test_conn("dctcp,alpha_on_init=0", &a);

	window(&conn, &a, 20);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 0);
	CHECK_EQ(cc_call_loss(&conn, &a), 10);
}

/* RFC 8257's receiver: the echo changes only with the packets, and each change acknowledges what came before. */
static void the_receiver_echoes_every_change_of_ce(void)
{
	u32 ce = 0;

	CHECK_EQ(cc_echo(&ce, 0, 1), CC_ECHO_ECE_OFF);
	CHECK_EQ(cc_echo(&ce, 1, 1), CC_ECHO_ACK_BEFORE | CC_ECHO_ACK_NOW | CC_ECHO_ECE_ON);
	CHECK_EQ(cc_echo(&ce, 1, 0), CC_ECHO_ECE_ON);
	CHECK_EQ(cc_echo(&ce, 0, 0), CC_ECHO_ACK_NOW | CC_ECHO_ECE_OFF);
}

/*
 * Step marking at T: mean srtt stays within 10121 us (the empty path) and 10121 + T + 20 % plus a packet's delayed ACK, with a full link
 * (8256 packets/s) and without a drop after slow start. With 1 ms, part of the link is unused: a burst of DCTCP, which is not paced, is
 * eight packets or a millisecond, so its end is marked although the queue behind it is empty.
 */
static void behind_a_step_the_queue_stays_at_the_threshold(const char *scheme, u32 mark_us, u32 min_pkts)
{
	struct sim_path path = {100000000, 10000, 187500, mark_us, 0, 1};
	struct sim *sim = sim_new(&path, NULL);
	struct sim_flow_config config = {.stop_us = 100000000};
	char message[256];
	u64 before, dropped, sum = 0;
	u32 i;

	CHECK_EQ((u32)cc_conn_parse(&config.conn, scheme, message, sizeof(message)), 0);
	sim_add(sim, &config);
	sim_run(sim, 10000000);
	before = sim_view(sim, 0).delivered_pkts;
	dropped = sim_view(sim, 0).dropped_pkts;
	for (i = 1; i <= 1000; i++) {
		sim_run(sim, 10000000 + i * 10000ull);
		sum += sim_view(sim, 0).srtt_us;
	}
	CHECK(sum / 1000 > 10121 + mark_us / 10);
	CHECK(sum / 1000 < 10121 + mark_us + mark_us / 5 + 121);
	CHECK(sim_view(sim, 0).delivered_pkts - before > min_pkts);
	CHECK_EQ(sim_view(sim, 0).dropped_pkts, dropped);
	sim_free(sim);
}

int main(void)
{
	alpha_follows_the_share_of_marks();
	alpha_reaches_zero_and_one();
	marks_of_application_limited_bursts_raise_alpha();
	the_counts_may_wrap();
	the_cut_is_half_of_alpha();
	without_ecn_it_is_reno();
	test_reductions_forget_credits("dctcp");
	the_receiver_echoes_every_change_of_ce();
	behind_a_step_the_queue_stays_at_the_threshold("dctcp", 1000, 68000);
	behind_a_step_the_queue_stays_at_the_threshold("dctcp", 5000, 80000);
	behind_a_step_the_queue_stays_at_the_threshold("prague", 1000, 75000);
	behind_a_step_the_queue_stays_at_the_threshold("prague", 5000, 80000);
	return test_done("dctcp");
}
