/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Kernel structures of acks.bpf.c in addition to kernel.bpf.h: only the fields in use, in any order. CO-RE ignores the
 * suffix after ___ and relocates offsets to the running kernel. Test fields that are newer than 5.15 with HAS.
 */
#ifndef CCB_TCP_BPF_H
#define CCB_TCP_BPF_H

#include "../../../kmod/bpf/kernel.bpf.h"

struct sock___acks {
	struct {
		int len;
	} sk_backlog;
} KERNEL;

struct tcp_congestion_ops___acks {
	char name[16];
} KERNEL;

struct inet_connection_sock___acks {
	struct inet_sock icsk_inet;
	u32 icsk_rto, icsk_pmtu_cookie;
	void *icsk_ca_ops;
	u8 icsk_ca_state : 5;
	u8 icsk_retransmits, icsk_backoff, icsk_probes_out;
	struct {
		u32 ato : 8;
		u16 rcv_mss;
	} icsk_ack;
} KERNEL;

struct tcp_sock___acks {
	struct inet_connection_sock___acks inet_conn;
	u32 rcv_ssthresh, reordering, snd_wnd, mss_cache, snd_cwnd, lost_out, sacked_out, retrans_out;
	u16 advmss;
	u32 snd_ssthresh;
	struct minmax rtt_min;
	u32 segs_out, data_segs_out, segs_in, data_segs_in;
	u64 bytes_sent, bytes_retrans, bytes_acked, bytes_received;
	u8 chrono_type : 2, rate_app_limited : 1, ecn_flags;
	u32 chrono_start, chrono_stat[3];
	u32 write_seq, snd_una, snd_nxt, srtt_us, mdev_us, packets_out, delivered, delivered_ce, rcv_wnd;
	u32 rate_delivered, rate_interval_us;
	struct {
		u32 rtt_us;
	} rcv_rtt_est;
	struct {
		int space;
	} rcvq_space;
	u32 dsack_dups, reord_seen, total_retrans, rcv_ooopack;
	u16 timeout_rehash;
	u32 plb_rehash;			      /* 6.2 */
	u16 total_rto, total_rto_recoveries;  /* 6.7 */
	u32 total_rto_time, rto_stamp;
	u32 received_ce, received_ecn_bytes[3], delivered_ecn_bytes[3]; /* 6.18 */
	u8 accecn_fail_mode : 4, saw_accecn_opt : 2;
} KERNEL;

struct sk_buff {
	char cb[48];
	unsigned char *head;
	u32 end;
} KERNEL;

struct tcp_skb_cb {
	u8 ip_dsfield;
	u16 tcp_gso_segs;
} KERNEL;

struct skb_shared_info {
	u16 gso_segs;
} KERNEL;

#define HAS(object, field) FIELD_INFO(object, field, 2)

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*const bpf_get_socket_cookie)(void *sk) = (void *)46;
static long (*const bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*const bpf_probe_read_kernel_str)(void *to, u32 size, const void *from) = (void *)115;
static u64 (*const bpf_jiffies64)(void) = (void *)118;
static void *(*const bpf_skc_to_tcp_sock)(void *sk) = (void *)137;
#define BPF_NOEXIST 1

#define CE 3 /* the ECN field */

#endif
