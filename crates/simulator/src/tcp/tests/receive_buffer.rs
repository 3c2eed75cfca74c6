//! Tests the receiver's RTT estimate, by which its buffer grows.

use super::*;

#[test]
fn the_receiver_takes_one_sample_of_the_rtt_for_each_tick_of_the_timestamps() {
    let mut receiver = Receiver::new(EcnMode::Off, RCVBUF, 0, 20 * MS);
    let mut number = 0;
    let mut rtt_us = |at_us: u64, tsecr_us: u64| {
        let segment = Segment { tsecr_ns: tsecr_us * 1000, ..segment(number) };
        receiver.on_segment(at_us * 1000, &segment, Ecn::NotEct);
        number += 1;
        receiver.rcv_rtt_us()
    };
    assert_eq!(rtt_us(30_900, 10_100), 20_000, "whole ticks");
    assert_eq!(rtt_us(70_000, 10_200), 20_000, "of the same tick");
    assert_eq!(rtt_us(71_000, 11_000), 25_000, "an eighth of the difference");
    assert_eq!(rtt_us(72_000, 55_900), 17_000, "a lower one");
}

#[test]
fn the_receiver_measures_an_rtt_below_a_tick_by_its_window() {
    let mut receiver = Receiver::new(EcnMode::Off, RCVBUF, 0, MS / 2);
    let window_bytes = receiver.rcv_wnd_bytes();
    let mut number = 0;
    // One segment per 10 us, half an RTT after its acknowledgement.
    while (number + 1) * MSS < window_bytes {
        receiver.on_segment(MS + number * 10_000, &segment(number), Ecn::NotEct);
        assert_eq!(receiver.rcv_rtt_us(), 0);
        number += 1;
    }
    receiver.on_segment(MS + number * 10_000, &segment(number), Ecn::NotEct);
    receiver.on_segment(MS + number * 10_000 + 10_000, &segment(number + 1), Ecn::NotEct);
    assert!((440..=460).contains(&receiver.rcv_rtt_us()), "{}", receiver.rcv_rtt_us());
}
