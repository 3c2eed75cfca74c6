//! Impairments of arriving packets: loss, duplication, corruption, jitter, reordering, and rewriting of the ECN field. This module only
//! decides; the caller changes the packets.

use ccbench_proto::plan::{Distribution, EcnRewrite, Jitter, Link};
use ccbench_proto::units::{Micros, Ppm};

use super::header::Ecn;
use super::loss::Loss;
use super::random::{Bernoulli, Purpose, Random};

/// Random streams of one link. Every packet draws from every active stream, so that the streams are independent.
#[derive(Debug)]
pub(crate) struct Impair {
    loss: Loss,
    duplicate: Bernoulli,
    corrupt: Bernoulli,
    reorder: Bernoulli,
    /// How much later reordered packets leave the delay; 0: they skip the delay.
    late_ns: u64,
    jitter: Option<CorrelatedJitter>,
    ecn: EcnRewrite,
    rewrite: Bernoulli,
}

/// The impairments of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Decision {
    /// Drop it.
    pub(crate) lost: bool,
    /// Deliver it twice.
    pub(crate) duplicated: bool,
    /// Flip the bit that this draw selects.
    pub(crate) flip: Option<u64>,
    /// Deliver it without delay, before earlier packets.
    pub(crate) undelayed: bool,
    /// Deliver it this much later, behind packets that arrive after it, nanoseconds.
    pub(crate) late_ns: u64,
    /// Added to the delay, nanoseconds.
    pub(crate) jitter_ns: i64,
    /// Its new ECN field.
    pub(crate) ecn: Option<Ecn>,
}

impl Impair {
    /// The impairments of `link`.
    pub(crate) fn new(link: &Link, seed: u64) -> Self {
        let bernoulli = |share: Option<Ppm>, purpose| {
            Bernoulli::new(share.unwrap_or_default().get(), seed, purpose)
        };
        let whole = Ppm::new(1_000_000);
        let rewritten = link.ecn_rewrite.and_then(|rewrite| rewrite.share.or(whole));
        Self {
            loss: Loss::new(link.loss.unwrap_or_default().get(), link.burst_loss, seed),
            duplicate: bernoulli(link.duplicate, Purpose::Duplicate),
            corrupt: bernoulli(link.corrupt, Purpose::Corrupt),
            reorder: bernoulli(link.reorder.map(|reorder| reorder.share), Purpose::Reorder),
            late_ns: link.reorder.and_then(|reorder| reorder.late).map_or(0, Micros::nanos),
            jitter: link.jitter.map(|jitter| CorrelatedJitter::new(jitter, seed)),
            ecn: link.ecn_rewrite.unwrap_or_default(),
            rewrite: bernoulli(rewritten, Purpose::EcnRewrite),
        }
    }

    /// Returns whether there is any impairment.
    pub(crate) fn is_active(&self) -> bool {
        let chances = [&self.duplicate, &self.corrupt, &self.reorder, &self.rewrite];
        self.loss.is_possible() || self.jitter.is_some() || chances.iter().any(|c| c.is_possible())
    }

    /// Sets the independent loss, parts per million.
    pub(crate) fn set_loss(&mut self, ppm: u32) {
        self.loss.set(ppm);
    }

    /// Decides for the next packet, which arrives at `at_ns` with this ECN field.
    #[inline]
    pub(crate) fn decide(&mut self, at_ns: u64, ecn: Ecn) -> Decision {
        let lost = self.loss.next_is_lost();
        let duplicated = self.duplicate.sample();
        // Always two draws per packet, so that the decision for packet n does not depend on earlier decisions.
        let flip = self.corrupt.is_possible().then(|| {
            let happens = self.corrupt.sample();
            let draw = self.corrupt.draw();
            happens.then_some(draw)
        });
        let rewritten = self.rewrite.sample();
        let reordered = self.reorder.sample();
        Decision {
            lost,
            duplicated: duplicated && !lost,
            flip: flip.flatten().filter(|_| !lost),
            undelayed: reordered && self.late_ns == 0,
            late_ns: if reordered { self.late_ns } else { 0 },
            jitter_ns: self.jitter.as_mut().map_or(0, |jitter| jitter.at(at_ns)),
            ecn: self.ecn.of(ecn).filter(|_| rewritten && !lost),
        }
    }

    /// Returns whether a packet may leave the delay before one that arrived earlier.
    pub(crate) fn may_overtake(&self) -> bool {
        self.reorder.is_possible() || self.jitter.as_ref().is_some_and(|j| j.reorder)
    }

    /// Returns the shortest possible delay of a packet when the constant delay is `delay_ns`.
    pub(crate) fn min_delay_ns(&self, delay_ns: u64) -> u64 {
        if self.reorder.is_possible() && self.late_ns == 0 {
            return 0;
        }
        match &self.jitter {
            None => delay_ns,
            Some(jitter) => match jitter.shape {
                Distribution::Pareto => delay_ns,
                Distribution::Uniform => delay_ns.saturating_sub(jitter.spread_ns as u64 + 1),
                Distribution::Normal => 0,
            },
        }
    }
}

/// Returns the jitter that about one packet in a thousand exceeds, nanoseconds. Sizes buffers.
pub(crate) fn typical_jitter_ns(jitter: Option<Jitter>) -> u64 {
    let times = |jitter: &Jitter| match jitter.distribution {
        Distribution::Uniform => 1,
        Distribution::Normal => 4,
        Distribution::Pareto => 18,
    };
    jitter.map_or(0, |jitter| jitter.spread.nanos().saturating_mul(times(&jitter)))
}

/// Correlated jitter: a first-order autoregressive Gaussian process, mapped to the distribution.
#[derive(Debug)]
struct CorrelatedJitter {
    shape: Distribution,
    spread_ns: f64,
    reorder: bool,
    correlation: f64,
    /// Scale of the innovation, which makes the variance one.
    innovation_scale: f64,
    last: Option<f64>,
    random: Random,
    /// How long a draw applies; 0: to one packet.
    hold_ns: u64,
    /// The current draw, and until when it applies.
    held: (u64, i64),
}

impl CorrelatedJitter {
    fn new(jitter: Jitter, seed: u64) -> Self {
        let correlation = f64::from(jitter.correlation.unwrap_or_default().get()) / 1e6;
        Self {
            shape: jitter.distribution,
            spread_ns: Micros::nanos(jitter.spread) as f64,
            reorder: jitter.reorder,
            correlation,
            innovation_scale: (1.0 - correlation * correlation).max(0.0).sqrt(),
            last: None,
            random: Random::new(seed, Purpose::Jitter),
            hold_ns: jitter.hold.map_or(0, Micros::nanos),
            held: (0, 0),
        }
    }

    /// Returns the jitter of a packet that arrives at `at_ns`.
    fn at(&mut self, at_ns: u64) -> i64 {
        let (until_ns, held_ns) = self.held;
        if at_ns < until_ns {
            return held_ns;
        }
        let jitter_ns = self.next_ns();
        self.held = (at_ns.saturating_add(self.hold_ns), jitter_ns);
        jitter_ns
    }

    fn next_ns(&mut self) -> i64 {
        let normal = self.normal();
        let share = match self.shape {
            Distribution::Normal => normal,
            Distribution::Uniform => 2.0 * normal_cdf(normal) - 1.0,
            // Lomax with shape 3 and scale 2, hence mean 1. `normal_cdf(-x)` is precise in the long tail.
            Distribution::Pareto => {
                2.0 * (libm::cbrt(normal_cdf(-normal).max(1e-15)).recip() - 1.0)
            }
        };
        (share * self.spread_ns) as i64
    }

    /// Draws a standard normal variate that is correlated with the previous one.
    fn normal(&mut self) -> f64 {
        // Box-Muller. Uses only one of the pair, so that every packet takes the same number of draws. Not the system's libm, whose rounding
        // differs between machines.
        let radius = (-2.0 * libm::log(1.0 - self.random.unit())).sqrt();
        let innovation = radius * libm::cos(self.random.unit() * std::f64::consts::TAU);
        let normal = match self.last {
            Some(last) if self.correlation > 0.0 => {
                self.correlation * last + self.innovation_scale * innovation
            }
            _ => innovation,
        };
        self.last = Some(normal);
        normal
    }
}

/// Cumulative distribution function of the standard normal distribution. Uses `erfcc` of Press et al., "Numerical
/// Recipes" (relative error below 1.2e-7).
pub(crate) fn normal_cdf(x: f64) -> f64 {
    const TERMS: [f64; 10] = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let z = (x / std::f64::consts::SQRT_2).abs();
    let t = 1.0 / (1.0 + 0.5 * z);
    let sum = TERMS.iter().rev().fold(0.0, |sum, term| sum * t + term);
    let upper = 0.5 * t * libm::exp(sum - z * z);
    if x > 0.0 { 1.0 - upper } else { upper }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{BurstLoss, Reorder};

    use super::*;

    fn ppm(n: u32) -> Ppm {
        Ppm::new(n).unwrap()
    }

    fn jitter(distribution: Distribution, correlation: u32) -> Jitter {
        Jitter {
            spread: Micros::from_millis(1),
            distribution,
            correlation: Some(ppm(correlation)),
            ..Jitter::default()
        }
    }

    /// Returns draws in units of the spread.
    fn draws(distribution: Distribution, correlation: u32, count: usize) -> Vec<f64> {
        let mut jitter = CorrelatedJitter::new(jitter(distribution, correlation), 5);
        (0..count).map(|_| jitter.next_ns() as f64 / 1e6).collect()
    }

    fn mean(of: &[f64]) -> f64 {
        of.iter().sum::<f64>() / of.len() as f64
    }

    fn share(of: &[f64], holds: impl Fn(f64) -> bool) -> f64 {
        of.iter().filter(|&&x| holds(x)).count() as f64 / of.len() as f64
    }

    #[test]
    fn distributions_have_the_expected_moments_and_quantiles() {
        let normal = draws(Distribution::Normal, 0, 200_000);
        assert!(mean(&normal).abs() < 0.01);
        let squares: Vec<f64> = normal.iter().map(|x| x * x).collect();
        assert!((mean(&squares) - 1.0).abs() < 0.015);
        assert!((share(&normal, |x| x < -1.0) - 0.158_655).abs() < 0.004);
        assert!((share(&normal, |x| x > 2.0) - 0.022_75).abs() < 0.002);

        let uniform = draws(Distribution::Uniform, 0, 200_000);
        assert!(uniform.iter().all(|x| (-1.0..=1.0).contains(x)));
        for tenth in 1..10 {
            let at = f64::from(tenth) / 5.0 - 1.0;
            let found = share(&uniform, |x| x < at);
            assert!((found - f64::from(tenth) / 10.0).abs() < 0.005, "{tenth}: {found}");
        }

        let pareto = draws(Distribution::Pareto, 0, 400_000);
        assert!(pareto.iter().all(|&x| x >= 0.0));
        assert!((mean(&pareto) - 1.0).abs() < 0.02, "{}", mean(&pareto));
        // 1 - F(x) = (1 + x/2)^-3.
        for x in [0.5, 2.0, 8.0, 18.0_f64] {
            let wanted = (1.0 + x / 2.0).powi(-3);
            let found = share(&pareto, |draw| draw > x);
            assert!((found - wanted).abs() < 5.0 * (wanted / 400_000.0).sqrt(), "{x}: {found}");
        }
    }

    #[test]
    fn correlation_preserves_the_distribution() {
        for distribution in [Distribution::Normal, Distribution::Uniform, Distribution::Pareto] {
            let all = draws(distribution, 800_000, 200_000);
            let average = mean(&all);
            let product = |lag: usize| {
                let products: Vec<f64> =
                    all.windows(lag + 1).map(|w| (w[0] - average) * (w[lag] - average)).collect();
                mean(&products)
            };
            let found = product(1) / product(0);
            // Exact for the normal distribution. Slightly lower for the others, whose mapping is not linear.
            let wanted = if distribution == Distribution::Normal { 0.79..0.81 } else { 0.6..0.82 };
            assert!(wanted.contains(&found), "{distribution:?}: {found}");
            let wanted = if distribution == Distribution::Pareto { 1.0 } else { 0.0 };
            assert!((average - wanted).abs() < 0.05, "{distribution:?}: {average}");
        }
        assert!((normal_cdf(0.0) - 0.5).abs() < 1e-6);
        assert!((normal_cdf(-3.0) - 0.001_349_898).abs() < 1e-9);
        assert!((normal_cdf(1.959_964) - 0.975).abs() < 1e-6);
    }

    /// Returns a link with all impairments.
    fn all() -> Link {
        Link {
            loss: Some(ppm(1_000)),
            jitter: Some(jitter(Distribution::Normal, 250_000)),
            burst_loss: Some(BurstLoss {
                enter: ppm(5_000),
                leave: ppm(200_000),
                ..BurstLoss::default()
            }),
            duplicate: Some(ppm(20_000)),
            reorder: Some(Reorder::new(ppm(30_000))),
            corrupt: Some(ppm(10_000)),
            ecn_rewrite: Some(EcnRewrite {
                ect1: Some(Ecn::Ect0),
                share: Some(ppm(40_000)),
                ..EcnRewrite::default()
            }),
            ..Link::default()
        }
    }

    fn decisions(link: &Link, seed: u64) -> Vec<Decision> {
        let mut impair = Impair::new(link, seed);
        (0..20_000).map(|nth| impair.decide(nth * 1_000, Ecn::Ect1)).collect()
    }

    #[test]
    fn same_seed_gives_same_decisions() {
        assert_eq!(decisions(&all(), 4), decisions(&all(), 4));
        assert_ne!(decisions(&all(), 4), decisions(&all(), 5));
        let none = Link::default();
        assert!(!Impair::new(&none, 4).is_active() && Impair::new(&all(), 4).is_active());
        assert!(decisions(&none, 4).iter().all(|decision| *decision == Decision::default()));
    }

    #[test]
    fn impairments_use_independent_streams() {
        let full = decisions(&all(), 4);
        let alone = |link: Link| decisions(&link, 4);
        let none = Link::default;
        let jitter = alone(Link { jitter: all().jitter, ..none() });
        let duplicate = alone(Link { duplicate: all().duplicate, ..none() });
        let reorder = alone(Link { reorder: all().reorder, ..none() });
        let corrupt = alone(Link { corrupt: all().corrupt, ..none() });
        let rewrite = alone(Link { ecn_rewrite: all().ecn_rewrite, ..none() });
        for (nth, decision) in full.iter().enumerate() {
            assert_eq!(decision.jitter_ns, jitter[nth].jitter_ns);
            assert_eq!(decision.undelayed, reorder[nth].undelayed);
            assert_eq!(decision.duplicated, duplicate[nth].duplicated && !decision.lost);
            assert_eq!(decision.flip, corrupt[nth].flip.filter(|_| !decision.lost));
            assert_eq!(decision.ecn, rewrite[nth].ecn.filter(|_| !decision.lost));
        }
        let count =
            |holds: fn(&Decision) -> bool| full.iter().filter(|decision| holds(decision)).count();
        assert!((300..500).contains(&count(|f| f.duplicated)), "{}", count(|f| f.duplicated));
        assert!((500..700).contains(&count(|f| f.undelayed)), "{}", count(|f| f.undelayed));
        assert!((140..260).contains(&count(|f| f.flip.is_some())));
        assert!((700..880).contains(&count(|f| f.ecn == Some(Ecn::Ect0))));
    }

    #[test]
    fn ecn_fields_without_a_new_value_stay() {
        let ecn_rewrite = Some(EcnRewrite {
            ect0: Some(Ecn::NotEct),
            ce: Some(Ecn::Ect0),
            ..EcnRewrite::default()
        });
        let mut impair = Impair::new(&Link { ecn_rewrite, ..Link::default() }, 1);
        let new = Ecn::ALL.map(|ecn| impair.decide(0, ecn).ecn);
        assert!(impair.is_active());
        assert_eq!(new, [None, None, Some(Ecn::NotEct), Some(Ecn::Ect0)]);
    }

    #[test]
    fn a_draw_holds_for_its_time() {
        let plan =
            Jitter { hold: Some(Micros::from_millis(10)), ..jitter(Distribution::Uniform, 0) };
        let mut held = CorrelatedJitter::new(plan, 5);
        let mut each = CorrelatedJitter::new(jitter(Distribution::Uniform, 0), 5);
        // Each interval begins with the first packet after the end of the previous one.
        let times_ms = [3, 4, 12, 13, 22, 40, 49, 50];
        let found = times_ms.map(|at_ms| held.at(at_ms * 1_000_000));
        let [a, b, c, d] = [0, 1, 2, 3].map(|_| each.at(0));
        assert_eq!(found, [a, a, a, b, b, c, c, d]);
        assert!(a != b && b != c && c != d);
    }

    #[test]
    fn min_delay_covers_every_distribution() {
        let with = |jitter| Link { jitter, ..Link::default() };
        for (asked, wanted) in [
            (with(None), 10_000_000),
            (all(), 0),
            (with(Some(jitter(Distribution::Uniform, 0))), 8_999_999),
            (with(Some(jitter(Distribution::Pareto, 0))), 10_000_000),
        ] {
            assert_eq!(Impair::new(&asked, 1).min_delay_ns(10_000_000), wanted);
        }
    }
}
