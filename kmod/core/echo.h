/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The receiver's half of DCTCP-style feedback, for kernels without AccECN.
 *
 * Source: RFC 8257, section 3.2. With delayed ACKs one ACK may only cover packets of one kind, so that the sender
 * can count marks: when CE begins or ends, what came before is acknowledged at once, with its own echo.
 *
 *             CE packet: ack what came before without ECE, then echo
 *   [no CE] <------------------------------------------------------> [CE]
 *             packet without CE: ack what came before with ECE, then stop
 *
 * Kernel hooks: cwnd_event(CA_EVENT_ECN_IS_CE) and (CA_EVENT_ECN_NO_CE).
 */
#ifndef CC_ECHO_H
#define CC_ECHO_H

#include "cc.h"

/* What the host shall do, in this order. */
#define CC_ECHO_ACK_BEFORE 1u /* send an ACK up to the sequence number before this packet, as ECE stands now */
#define CC_ECHO_ECE_ON 2u     /* then demand CWR: ECE in every ACK from here */
#define CC_ECHO_ECE_OFF 4u
#define CC_ECHO_ACK_NOW 8u    /* and do not delay the next ACK */

/* One packet arrived while an ACK was pending or not; *ce is the receiver's state, 0 at first. */
CC_FN u32 cc_echo(u32 *ce, u32 packet_ce, u32 ack_pending)
{
	u32 what = 0;

	if (*ce != packet_ce) {
		if (ack_pending)
			what |= CC_ECHO_ACK_BEFORE;
		what |= CC_ECHO_ACK_NOW;
	}
	*ce = packet_ce;
	return what | (packet_ce ? CC_ECHO_ECE_ON : CC_ECHO_ECE_OFF);
}

#endif
