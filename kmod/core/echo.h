/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The receiver of DCTCP-style ECN feedback, for kernels without AccECN.
 *
 * Source: RFC 8257, section 3.2. With delayed ACKs, an ACK must cover only marked or only unmarked packets, so that the sender can count
 * marks. When CE starts or stops, the earlier packets are acknowledged at once, with the earlier ECE.
 *
 *             CE packet: ACK earlier packets without ECE, then set ECE
 *   [no CE] <------------------------------------------------------> [CE]
 *             packet without CE: ACK earlier packets with ECE, then clear it
 *
 * Kernel hooks: cwnd_event(CA_EVENT_ECN_IS_CE) and (CA_EVENT_ECN_NO_CE).
 */
#ifndef CC_ECHO_H
#define CC_ECHO_H

#include "cc.h"

/* Actions for the host, in this order. */
#define CC_ECHO_ACK_BEFORE 1u /* ACK up to the sequence number before this packet, with the current ECE */
#define CC_ECHO_ECE_ON 2u     /* then set TCP_ECN_DEMAND_CWR: ECE in every ACK */
#define CC_ECHO_ECE_OFF 4u
#define CC_ECHO_ACK_NOW 8u    /* and do not delay the next ACK */

/* Processes an arriving packet. *ce is the receiver's state DCTCP.CE, initially 0. Returns the actions. */
CC_FN u32 cc_echo(u32 *ce, u32 packet_ce, u32 ack_pending)
{
	u32 actions = 0;

	if (*ce != packet_ce) {
		if (ack_pending)
			actions |= CC_ECHO_ACK_BEFORE;
		actions |= CC_ECHO_ACK_NOW;
	}
	*ce = packet_ce;
	return actions | (packet_ce ? CC_ECHO_ECE_ON : CC_ECHO_ECE_OFF);
}

#endif
