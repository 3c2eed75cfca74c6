//! What happens to a packet as it arrives, beside being delayed for a constant time: loss, duplication,
//! corruption, random delay, overtaking. Pure: the bytes are the caller's.

use ccbench_proto::plan::{Distribution, Jitter};
use ccbench_proto::resolve::Impairments;
use ccbench_proto::units::Micros;

use super::loss::Loss;
use super::random::{Chance, Purpose, Random};

/// All random decisions of one link. Every packet draws from every stream in use, independent of the others.
#[derive(Debug)]
pub(crate) struct Impair {
    loss: Loss,
    duplicate: Chance,
    corrupt: Chance,
    reorder: Chance,
    jitter: Option<Wander>,
}

/// What becomes of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fate {
    /// It is lost.
    pub(crate) lost: bool,
    /// It is delivered twice.
    pub(crate) twice: bool,
    /// Flip the bit that this draw selects.
    pub(crate) flip: Option<u64>,
    /// It is not delayed at all.
    pub(crate) at_once: bool,
    /// Added to its delay, nanoseconds.
    pub(crate) jitter_ns: i64,
}

impl Impair {
    /// As asked; `loss_ppm` is the independent loss.
    pub(crate) fn new(loss_ppm: u32, asked: &Impairments, seed: u64) -> Self {
        let chance = |share: u32, purpose| Chance::new(share, seed, purpose);
        let reorder = asked.reorder.map_or(0, |reorder| reorder.share.get());
        Self {
            loss: Loss::new(loss_ppm, asked.burst_loss, seed),
            duplicate: chance(asked.duplicate.get(), Purpose::Duplicate),
            corrupt: chance(asked.corrupt.get(), Purpose::Corrupt),
            reorder: chance(reorder, Purpose::Reorder),
            jitter: asked.jitter.map(|jitter| Wander::new(jitter, seed)),
        }
    }

    /// From now on the independent loss is `ppm` parts of a million.
    pub(crate) fn set_loss(&mut self, ppm: u32) {
        self.loss.set(ppm);
    }

    /// Decides on the next packet.
    #[inline]
    pub(crate) fn next(&mut self) -> Fate {
        let lost = self.loss.next_is_lost();
        let twice = self.duplicate.happens();
        // Two draws each, so that the n-th packet's are always the same.
        let flip = self.corrupt.is_possible().then(|| {
            let happens = self.corrupt.happens();
            let draw = self.corrupt.draw();
            happens.then_some(draw)
        });
        Fate {
            lost,
            twice: twice && !lost,
            flip: flip.flatten().filter(|_| !lost),
            at_once: self.reorder.happens(),
            jitter_ns: self.jitter.as_mut().map_or(0, Wander::next_ns),
        }
    }

    /// Whether a packet may leave the delay before one that arrived earlier.
    pub(crate) fn may_overtake(&self) -> bool {
        self.reorder.is_possible() || self.jitter.as_ref().is_some_and(|j| j.reorder)
    }

    /// The shortest delay that a packet may have when the constant one is `delay_ns`.
    pub(crate) fn least_delay_ns(&self, delay_ns: u64) -> u64 {
        if self.reorder.is_possible() {
            return 0;
        }
        match &self.jitter {
            None => delay_ns,
            Some(wander) => match wander.shape {
                Distribution::Pareto => delay_ns,
                Distribution::Uniform => delay_ns.saturating_sub(wander.spread_ns as u64 + 1),
                Distribution::Normal => 0,
            },
        }
    }
}

/// How far a link's delay may usually go beyond the constant one, nanoseconds: one packet in a thousand goes
/// farther. What a link's memory is sized for.
pub(crate) fn usual_excess_ns(jitter: Option<Jitter>) -> u64 {
    let times = |jitter: &Jitter| match jitter.distribution {
        Distribution::Uniform => 1,
        Distribution::Normal => 4,
        Distribution::Pareto => 18,
    };
    jitter.map_or(0, |jitter| jitter.spread.nanos().saturating_mul(times(&jitter)))
}

/// A random delay whose draws are correlated: a first-order Gaussian process, mapped onto the distribution.
#[derive(Debug)]
struct Wander {
    shape: Distribution,
    spread_ns: f64,
    reorder: bool,
    correlation: f64,
    /// Scale of what is new in each step, so that the variance stays one.
    fresh: f64,
    last: Option<f64>,
    random: Random,
}

impl Wander {
    fn new(jitter: Jitter, seed: u64) -> Self {
        let correlation = f64::from(jitter.correlation.unwrap_or_default().get()) / 1e6;
        Self {
            shape: jitter.distribution,
            spread_ns: Micros::nanos(jitter.spread) as f64,
            reorder: jitter.reorder,
            correlation,
            fresh: (1.0 - correlation * correlation).max(0.0).sqrt(),
            last: None,
            random: Random::new(seed, Purpose::Jitter),
        }
    }

    fn next_ns(&mut self) -> i64 {
        let normal = self.normal();
        let share = match self.shape {
            Distribution::Normal => normal,
            Distribution::Uniform => 2.0 * below(normal) - 1.0,
            // Lomax of shape 3 and scale 2, so of mean 1; `below(-x)` keeps its digits in the long tail.
            Distribution::Pareto => 2.0 * (below(-normal).max(1e-15).cbrt().recip() - 1.0),
        };
        (share * self.spread_ns) as i64
    }

    /// A standard normal variate, correlated with the one before.
    fn normal(&mut self) -> f64 {
        // Box and Muller's; of the pair only one, so that each packet takes as many draws.
        let radius = (-2.0 * (1.0 - self.random.unit()).ln()).sqrt();
        let fresh = radius * (self.random.unit() * std::f64::consts::TAU).cos();
        let normal = match self.last {
            Some(last) if self.correlation > 0.0 => self.correlation * last + self.fresh * fresh,
            _ => fresh,
        };
        self.last = Some(normal);
        normal
    }
}

/// The standard normal distribution function, by the complementary error function of Press et al. ("Numerical
/// Recipes", relative error below 1.2e-7 everywhere).
pub(crate) fn below(x: f64) -> f64 {
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
    let upper = 0.5 * t * (sum - z * z).exp();
    if x > 0.0 { 1.0 - upper } else { upper }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{BurstLoss, Reorder};
    use ccbench_proto::units::Ppm;

    use super::*;

    fn ppm(n: u32) -> Ppm {
        Ppm::new(n).unwrap()
    }

    fn jitter(distribution: Distribution, correlation: u32) -> Jitter {
        Jitter {
            spread: Micros::from_millis(1),
            distribution,
            correlation: Some(ppm(correlation)),
            reorder: false,
        }
    }

    /// Draws in units of the spread.
    fn draws(distribution: Distribution, correlation: u32, count: usize) -> Vec<f64> {
        let mut wander = Wander::new(jitter(distribution, correlation), 5);
        (0..count).map(|_| wander.next_ns() as f64 / 1e6).collect()
    }

    fn mean(of: &[f64]) -> f64 {
        of.iter().sum::<f64>() / of.len() as f64
    }

    fn share(of: &[f64], holds: impl Fn(f64) -> bool) -> f64 {
        of.iter().filter(|&&x| holds(x)).count() as f64 / of.len() as f64
    }

    #[test]
    fn each_distribution_has_its_moments_and_quantiles() {
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
    fn correlation_leaves_the_distribution_as_it_is() {
        for distribution in [Distribution::Normal, Distribution::Uniform, Distribution::Pareto] {
            let all = draws(distribution, 800_000, 200_000);
            let average = mean(&all);
            let product = |lag: usize| {
                let products: Vec<f64> =
                    all.windows(lag + 1).map(|w| (w[0] - average) * (w[lag] - average)).collect();
                mean(&products)
            };
            let found = product(1) / product(0);
            // Exact for the normal one; a little less for the others, whose mapping is not linear.
            let wanted = if distribution == Distribution::Normal { 0.79..0.81 } else { 0.6..0.82 };
            assert!(wanted.contains(&found), "{distribution:?}: {found}");
            let wanted = if distribution == Distribution::Pareto { 1.0 } else { 0.0 };
            assert!((average - wanted).abs() < 0.05, "{distribution:?}: {average}");
        }
        assert!((below(0.0) - 0.5).abs() < 1e-6);
        assert!((below(-3.0) - 0.001_349_898).abs() < 1e-9);
        assert!((below(1.959_964) - 0.975).abs() < 1e-6);
    }

    /// Everything at once.
    fn all() -> Impairments {
        Impairments {
            jitter: Some(jitter(Distribution::Normal, 250_000)),
            burst_loss: Some(BurstLoss {
                enter: ppm(5_000),
                leave: ppm(200_000),
                bad: None,
                good: None,
            }),
            duplicate: ppm(20_000),
            reorder: Some(Reorder { share: ppm(30_000) }),
            corrupt: ppm(10_000),
        }
    }

    fn fates(loss_ppm: u32, asked: &Impairments, seed: u64) -> Vec<Fate> {
        let mut impair = Impair::new(loss_ppm, asked, seed);
        (0..20_000).map(|_| impair.next()).collect()
    }

    #[test]
    fn the_same_seed_decides_the_same() {
        assert_eq!(fates(1_000, &all(), 4), fates(1_000, &all(), 4));
        assert_ne!(fates(1_000, &all(), 4), fates(1_000, &all(), 5));
        assert!(fates(0, &Impairments::default(), 4).iter().all(|fate| *fate == Fate::default()));
    }

    #[test]
    fn asking_for_one_thing_more_changes_nothing_else() {
        let full = fates(1_000, &all(), 4);
        let alone = |asked: Impairments| fates(0, &asked, 4);
        let none = Impairments::default();
        let jitter = alone(Impairments { jitter: all().jitter, ..none });
        let duplicate = alone(Impairments { duplicate: all().duplicate, ..none });
        let reorder = alone(Impairments { reorder: all().reorder, ..none });
        let corrupt = alone(Impairments { corrupt: all().corrupt, ..none });
        for (nth, fate) in full.iter().enumerate() {
            assert_eq!(fate.jitter_ns, jitter[nth].jitter_ns);
            assert_eq!(fate.at_once, reorder[nth].at_once);
            assert_eq!(fate.twice, duplicate[nth].twice && !fate.lost);
            assert_eq!(fate.flip, corrupt[nth].flip.filter(|_| !fate.lost));
        }
        let count = |holds: fn(&Fate) -> bool| full.iter().filter(|fate| holds(fate)).count();
        assert!((300..500).contains(&count(|f| f.twice)), "{}", count(|f| f.twice));
        assert!((500..700).contains(&count(|f| f.at_once)), "{}", count(|f| f.at_once));
        assert!((140..260).contains(&count(|f| f.flip.is_some())));
    }

    #[test]
    fn the_least_delay_is_never_undercut() {
        for (asked, wanted) in [
            (Impairments::default(), 10_000_000),
            (all(), 0),
            (
                Impairments {
                    jitter: Some(jitter(Distribution::Uniform, 0)),
                    ..Impairments::default()
                },
                8_999_999,
            ),
            (
                Impairments {
                    jitter: Some(jitter(Distribution::Pareto, 0)),
                    ..Impairments::default()
                },
                10_000_000,
            ),
        ] {
            assert_eq!(Impair::new(0, &asked, 1).least_delay_ns(10_000_000), wanted);
        }
    }
}
