/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "host.h"

#include <stdlib.h>
#include <string.h>

#include "bbr.h"
#include "cubic.h"
#include "reno.h"
#include "../core/schemes.h"

/* TEXT is the name as users write it. */
#define HOST_AS(NAME, TEXT, WANTS)                                                                 \
	static int NAME##_check(const u32 *p, struct cc_fault *fault)                              \
	{                                                                                          \
		return cc_##NAME##_check((const struct cc_##NAME##_params *)p, fault);             \
	}                                                                                          \
	static void NAME##_init(void *st, const u32 *p, const struct cc_ack *a, struct cc_out *o)  \
	{                                                                                          \
		cc_##NAME##_init(st, (const struct cc_##NAME##_params *)p, a, o);                  \
	}                                                                                          \
	static u32 NAME##_on_sample(void *st, const u32 *p, const struct cc_ack *a)                \
	{                                                                                          \
		return cc_##NAME##_on_sample(st, (const struct cc_##NAME##_params *)p, a);         \
	}                                                                                          \
	static void NAME##_on_ack(void *st, const u32 *p, const struct cc_ack *a,                  \
				  struct cc_out *o)                                                \
	{                                                                                          \
		cc_##NAME##_on_ack(st, (const struct cc_##NAME##_params *)p, a, o);                \
	}                                                                                          \
	static u32 NAME##_on_loss(void *st, const u32 *p, const struct cc_ack *a)                  \
	{                                                                                          \
		return cc_##NAME##_on_loss(st, (const struct cc_##NAME##_params *)p, a);           \
	}                                                                                          \
	static void NAME##_on_event(void *st, const u32 *p, u32 event, const struct cc_ack *a,     \
				    struct cc_out *o)                                              \
	{                                                                                          \
		cc_##NAME##_on_event(st, (const struct cc_##NAME##_params *)p, event, a, o);       \
	}                                                                                          \
	static u32 NAME##_undo(void *st, const u32 *p, const struct cc_ack *a)                     \
	{                                                                                          \
		return cc_##NAME##_undo(st, (const struct cc_##NAME##_params *)p, a);              \
	}                                                                                          \
	static void NAME##_read(const void *st, const u32 *p, const struct cc_ack *a, u32 *stats)  \
	{                                                                                          \
		cc_##NAME##_read(st, (const struct cc_##NAME##_params *)p, a,                      \
				 (struct cc_##NAME##_stats *)stats);                               \
	}                                                                                          \
	static const struct cc_ops NAME##_ops = {                                                  \
		.name = TEXT,                                                                      \
		.wants = WANTS,                                                                    \
		.state_bytes = sizeof(struct cc_##NAME##_state),                                   \
		.params = cc_##NAME##_table,                                                       \
		.param_count = CC_PARAM_COUNT(NAME),                                               \
		.defaults = (const u32 *)&cc_##NAME##_defaults,                                    \
		.stats = cc_##NAME##_stat_table,                                                   \
		.stat_count = sizeof(struct cc_##NAME##_stats) / sizeof(u32),                      \
		.check = NAME##_check,                                                             \
		.init = NAME##_init,                                                               \
		.on_sample = NAME##_on_sample,                                                     \
		.on_ack = NAME##_on_ack,                                                           \
		.on_loss = NAME##_on_loss,                                                         \
		.on_event = NAME##_on_event,                                                       \
		.undo = NAME##_undo,                                                               \
		.read = NAME##_read,                                                               \
	};

#define HOST(NAME, WANTS) HOST_AS(NAME, #NAME, WANTS)

CC_CORES(HOST)
HOST(cubic, 0)
HOST(reno, 0)
HOST_AS(bbr1, "bbr", CC_BBR1_WANTS)

#define BURSTS(NAME)                                                                               \
	static u32 NAME##_burst_segs(const u32 *p, u64 pacing_bytes_per_sec, u32 mtu_bytes)        \
	{                                                                                          \
		return cc_##NAME##_burst_segs((const struct cc_##NAME##_params *)p,                \
					      pacing_bytes_per_sec, mtu_bytes);                    \
	}                                                                                          \
	static u32 NAME##_burst_shift(const u32 *p)                                                \
	{                                                                                          \
		return cc_##NAME##_burst_shift((const struct cc_##NAME##_params *)p);              \
	}

BURSTS(bbr1)
BURSTS(bbr2)
BURSTS(prague)

/* The cores with CC_WANTS_BURSTS. */
static const struct {
	const struct cc_ops *ops;
	u32 (*segs)(const u32 *params, u64 pacing_bytes_per_sec, u32 mtu_bytes);
	u32 (*shift)(const u32 *params);
} bursts[] = {
	{&bbr1_ops, bbr1_burst_segs, bbr1_burst_shift},
	{&bbr2_ops, bbr2_burst_segs, bbr2_burst_shift},
	{&prague_ops, prague_burst_segs, prague_burst_shift},
};

#define ENTRY(NAME, WANTS) &NAME##_ops,
static const struct cc_ops *const all[] = {CC_CORES(ENTRY) & cubic_ops, &reno_ops, &bbr1_ops};

#define SCHEME(NAME, CORE, PRESET) {#NAME, #CORE, PRESET},
static const struct cc_scheme schemes[] = {CC_SCHEMES(SCHEME)};

const char *const cc_call_names[CALLS] = {"init", "sample", "ack", "loss", "event", "undo"};
const char *const cc_event_names[CC_EVENTS] = {"open",	   "disorder", "cwr",	   "recovery",
					       "losing", "restart",  "tx_start", "rto"};

#define CANARY 0x5ca1ab1e0ddba11ull

const struct cc_ops *const *cc_all(u32 *count)
{
	*count = sizeof(all) / sizeof(all[0]);
	return all;
}

const struct cc_scheme *cc_schemes(u32 *count)
{
	*count = sizeof(schemes) / sizeof(schemes[0]);
	return schemes;
}

const struct cc_ops *cc_find(const char *name)
{
	size_t i;

	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (!strcmp(all[i]->name, name))
			return all[i];
	return NULL;
}

void cc_fault_text(const struct cc_ops *ops, const struct cc_fault *f, char *message, size_t size)
{
	if (f->message)
		snprintf(message, size, "%s: parameter %s = %u: %s", ops->name, f->name, f->value, f->message);
	else
		snprintf(message, size, "%s: parameter %s = %u: allowed are %u to %u (%s)", ops->name,
			 f->name, f->value, f->min, f->max, f->unit);
}

/* Parses "name=value,name=value" into conn->params. */
static int set_params(struct cc_conn *conn, const char *text, char *message, size_t size)
{
	const struct cc_ops *ops = conn->ops;

	while (*text) {
		size_t length = strcspn(text, ",");
		size_t name_length = strcspn(text, "=");
		char *end;
		unsigned long long value;
		u32 i;

		if (name_length >= length) {
			snprintf(message, size, "%s: \"%.*s\": write parameter=value", ops->name,
				 (int)length, text);
			return -1;
		}
		for (i = 0; i < ops->param_count; i++)
			if (strlen(ops->params[i].name) == name_length &&
			    !strncmp(ops->params[i].name, text, name_length))
				break;
		if (i == ops->param_count) {
			snprintf(message, size, "%s has no parameter \"%.*s\"", ops->name,
				 (int)name_length, text);
			return -1;
		}
		value = strtoull(text + name_length + 1, &end, 10);
		if (text[name_length + 1] < '0' || text[name_length + 1] > '9' || end != text + length ||
		    value > 0xffffffffu) {
			snprintf(message, size, "%s: parameter %s: \"%.*s\" is not a whole number",
				 ops->name, ops->params[i].name, (int)(length - name_length - 1),
				 text + name_length + 1);
			return -1;
		}
		conn->params[i] = (u32)value;
		text += length + (text[length] == ',');
	}
	return 0;
}

int cc_conn_parse(struct cc_conn *conn, const char *text, char *message, size_t size)
{
	size_t length = strcspn(text, ","), i;
	const char *preset = "";
	struct cc_fault fault;
	char name[32];

	if (length >= sizeof(name))
		length = sizeof(name) - 1;
	memcpy(name, text, length);
	name[length] = 0;
	memset(conn, 0, sizeof(*conn));
	conn->ops = cc_find(name);
	for (i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
		if (strcmp(schemes[i].name, name))
			continue;
		conn->ops = cc_find(schemes[i].core);
		preset = schemes[i].preset;
	}
	if (!conn->ops) {
		snprintf(message, size, "there is no congestion control \"%s\"", name);
		return -1;
	}
	memcpy(conn->params, conn->ops->defaults, conn->ops->param_count * sizeof(u32));
	text += strcspn(text, ",");
	text += *text == ',';
	if (set_params(conn, preset, message, size) || set_params(conn, text, message, size))
		return -1;
	if (conn->ops->check(conn->params, &fault)) {
		cc_fault_text(conn->ops, &fault, message, size);
		return -1;
	}
	return 0;
}

/* Returns the parameter's value; 0 if the core has none with this name. */
static u32 param_of(const struct cc_conn *conn, const char *name)
{
	u32 i;

	for (i = 0; i < conn->ops->param_count; i++)
		if (!strcmp(conn->ops->params[i].name, name))
			return conn->params[i];
	return 0;
}

u32 cc_conn_wants(const struct cc_conn *conn)
{
	u32 wants = conn->ops->wants;

	return (wants & CC_MAY_WANT_ECN) && param_of(conn, "ecn_enable") ? wants | CC_WANTS_ECN : wants;
}

struct cc_bursts cc_conn_bursts(const struct cc_conn *conn, u64 pacing_bytes_per_sec, u32 mtu_bytes)
{
	struct cc_bursts of_stack = {.min_tso_segs = 2, .pacing_shift = 10};
	size_t i;

	for (i = 0; i < sizeof(bursts) / sizeof(bursts[0]); i++)
		if (bursts[i].ops == conn->ops)
			return (struct cc_bursts){bursts[i].segs(conn->params, pacing_bytes_per_sec, mtu_bytes),
						  bursts[i].shift(conn->params)};
	return of_stack;
}

/* Returns the word after the core's state. */
static u32 canary_at(const struct cc_conn *conn)
{
	return (conn->ops->state_bytes + 7) / 8;
}

static void report(struct cc_conn *conn, const struct cc_ack *a, const struct cc_answer *answer)
{
	if (conn->state[canary_at(conn)] != CANARY)
		cc_violation(conn, a, "a call wrote beyond the state", answer->call);
	if (conn->trace)
		conn->trace(conn->trace_context, a, answer);
}

static void check_out(struct cc_conn *conn, const struct cc_ack *a, const struct cc_out *out)
{
	u32 limit = cc_max(cc_max(a->cwnd_clamp_pkts, CC_MIN_CWND), a->cwnd_pkts);

	if (out->cwnd_pkts != a->cwnd_pkts && out->cwnd_pkts < CC_MIN_CWND)
		cc_violation(conn, a, "cwnd below 2", out->cwnd_pkts);
	if (out->cwnd_pkts > limit)
		cc_violation(conn, a, "cwnd above its clamp", out->cwnd_pkts);
	if (out->ssthresh_pkts != a->ssthresh_pkts && out->ssthresh_pkts < CC_MIN_CWND)
		cc_violation(conn, a, "ssthresh below 2", out->ssthresh_pkts);
	if (out->ssthresh_pkts > CC_INFINITE)
		cc_violation(conn, a, "ssthresh beyond infinity", out->ssthresh_pkts);
}

void cc_call_init(struct cc_conn *conn, const struct cc_ack *a, struct cc_out *out)
{
	struct cc_answer answer = {.call = CALL_INIT};

	memset(conn->state, 0, sizeof(conn->state));
	conn->state[canary_at(conn)] = CANARY;
	conn->ops->init(conn->state, conn->params, a, out);
	check_out(conn, a, out);
	answer.out = *out;
	report(conn, a, &answer);
}

u32 cc_call_sample(struct cc_conn *conn, const struct cc_ack *a)
{
	struct cc_answer answer = {.call = CALL_SAMPLE};
	u32 flags = conn->ops->on_sample(conn->state, conn->params, a);

	cc_keep(a, &answer.out);
	answer.out.flags = flags;
	report(conn, a, &answer);
	return flags;
}

void cc_call_ack(struct cc_conn *conn, const struct cc_ack *a, struct cc_out *out)
{
	struct cc_answer answer = {.call = CALL_ACK};

	conn->ops->on_ack(conn->state, conn->params, a, out);
	check_out(conn, a, out);
	if (out->cwnd_pkts < CC_MIN_CWND || out->cwnd_pkts > cc_max(a->cwnd_clamp_pkts, CC_MIN_CWND))
		cc_violation(conn, a, "cwnd out of bounds after an ack", out->cwnd_pkts);
	answer.out = *out;
	report(conn, a, &answer);
}

u32 cc_call_loss(struct cc_conn *conn, const struct cc_ack *a)
{
	struct cc_answer answer = {.call = CALL_LOSS};
	u32 ssthresh = conn->ops->on_loss(conn->state, conn->params, a);

	if (ssthresh < CC_MIN_CWND || ssthresh > CC_INFINITE)
		cc_violation(conn, a, "ssthresh after a loss", ssthresh);
	/* Only a shadow window may let ssthresh exceed the window before the loss. */
	if (!(conn->ops->wants & CC_OWNS_CWND) && !param_of(conn, "shadow") &&
	    ssthresh > cc_max(a->cwnd_pkts, CC_MIN_CWND))
		cc_violation(conn, a, "ssthresh above the window after a loss", ssthresh);
	cc_keep(a, &answer.out);
	answer.out.ssthresh_pkts = ssthresh;
	report(conn, a, &answer);
	return ssthresh;
}

void cc_call_event(struct cc_conn *conn, u32 event, const struct cc_ack *a, struct cc_out *out)
{
	struct cc_answer answer = {.call = CALL_EVENT, .event = event};

	conn->ops->on_event(conn->state, conn->params, event, a, out);
	check_out(conn, a, out);
	answer.out = *out;
	report(conn, a, &answer);
}

u32 cc_call_undo(struct cc_conn *conn, const struct cc_ack *a)
{
	struct cc_answer answer = {.call = CALL_UNDO};
	u32 cwnd = conn->ops->undo(conn->state, conn->params, a);

	if (cwnd < CC_MIN_CWND)
		cc_violation(conn, a, "cwnd after undo", cwnd);
	cc_keep(a, &answer.out);
	answer.out.cwnd_pkts = cwnd;
	report(conn, a, &answer);
	return cwnd;
}

void cc_call_read(const struct cc_conn *conn, const struct cc_ack *a, u32 *stats)
{
	conn->ops->read(conn->state, conn->params, a, stats);
}

u32 cc_random(u64 *seed)
{
	u64 x = *seed;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*seed = x;
	return (u32)((x * 0x2545f4914f6cdd1dull) >> 32);
}
