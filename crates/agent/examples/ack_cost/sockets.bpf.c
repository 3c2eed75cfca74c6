/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A BPF iterator over every TCP socket of the namespace, with the fields that a row of a poll needs. The benchmark compares
 * it with inet_diag and ss.
 */
#include "../../../collector/bpf/tcp.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

struct bpf_iter_meta {
	void *seq;
} KERNEL;

static long (*const bpf_seq_write)(void *seq, const void *data, u32 size) = (void *)127;

struct row {
	u64 cookie, bytes_acked, bytes_received, bytes_sent, bytes_retrans, pacing_rate;
	u32 ports, rtt_us, rttvar_us, min_rtt_us, snd_cwnd, snd_ssthresh, unacked, sacked, lost, retrans, delivered;
	u32 delivered_ce, total_retrans, segs_out, segs_in, data_segs_out, data_segs_in, snd_wnd, rcv_wnd, rcv_ooopack;
	u32 rate_delivered, rate_interval_us, rto_jiffies, ca_state;
};

SEC("iter/tcp") int sockets(u64 *ctx)
{
	struct bpf_iter_meta *meta = (void *)ctx[0];
	struct sock_common *sk = (void *)ctx[1];
	struct tcp_sock___acks *tp;
	struct row row = {};

	if (!sk)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	row.cookie = sk->skc_cookie.counter;
	row.ports = sk->skc_num | (u32)__builtin_bswap16(sk->skc_dport) << 16;
	row.bytes_acked = tp->bytes_acked;
	row.bytes_received = tp->bytes_received;
	row.bytes_sent = tp->bytes_sent;
	row.bytes_retrans = tp->bytes_retrans;
	row.pacing_rate = tp->inet_conn.icsk_inet.sk.sk_pacing_rate;
	row.rtt_us = tp->srtt_us >> 3;
	row.rttvar_us = tp->mdev_us >> 2;
	row.min_rtt_us = tp->rtt_min.s[0].v;
	row.snd_cwnd = tp->snd_cwnd;
	row.snd_ssthresh = tp->snd_ssthresh;
	row.unacked = tp->packets_out;
	row.sacked = tp->sacked_out;
	row.lost = tp->lost_out;
	row.retrans = tp->retrans_out;
	row.delivered = tp->delivered;
	row.delivered_ce = tp->delivered_ce;
	row.total_retrans = tp->total_retrans;
	row.segs_out = tp->segs_out;
	row.segs_in = tp->segs_in;
	row.data_segs_out = tp->data_segs_out;
	row.data_segs_in = tp->data_segs_in;
	row.snd_wnd = tp->snd_wnd;
	row.rcv_wnd = tp->rcv_wnd;
	row.rcv_ooopack = tp->rcv_ooopack;
	row.rate_delivered = tp->rate_delivered;
	row.rate_interval_us = tp->rate_interval_us;
	row.rto_jiffies = tp->inet_conn.icsk_rto;
	row.ca_state = BITS(tp, inet_conn.icsk_ca_state);
	bpf_seq_write(meta->seq, &row, sizeof(row));
	return 0;
}
