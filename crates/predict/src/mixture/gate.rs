//! How much each expert counts.
//!
//! An expert is a distribution: that of a template, with how fast older runs fade. What it has been worth is kept as a score
//! (in logits) for all users, apart by how many runs it has and whether the last two agree, and as a score of each user on
//! top. A job that ends moves both by the gradient of the logarithm of the probability that the mixture had given to its
//! run time: up where the expert was better than the mixture. So a new user begins with what holds for all.
//!
//! How fast scores should follow depends on the log: users with thousands of jobs want it slow, those with dozens fast.
//! So this is done at three speeds, each by itself, and their weights are averaged.

use super::marks::Template;

/// How fast scores follow: those of all, and those of a user.
const STEPS: [(f32, f32); SPEEDS] = [(0.1, 0.4), (0.02, 0.1), (0.005, 0.02)];
pub const SPEEDS: usize = 3;

/// One way to make a distribution of a template's runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Expert {
    /// Its number among [`Template::ALL`].
    pub template: usize,
    /// What each older run counts, of the one after it.
    pub fade: f32,
    /// By the share of the request that was used, as Alea does.
    pub ratio: bool,
}

/// The last run nearly alone; a few runs; all that are remembered.
const FADES: [f32; 3] = [0.3, 0.8, 1.0];
const FADE_OF_RATIOS: f32 = 0.8;
const RATIOS: [Template; 5] =
    [Template::User, Template::UserExecutable, Template::Request, Template::UserQueue, Template::All];
const PLAIN: usize = Template::ALL.len() * FADES.len();
/// The last of them is the request itself.
pub const EXPERTS: usize = PLAIN + RATIOS.len() + 1;
pub const REQUEST: usize = EXPERTS - 1;

/// All but that for the request, in the order of their templates' appearance in [`Template::ALL`], plain ones first.
pub fn experts() -> Vec<Expert> {
    let plain = (0..Template::ALL.len())
        .flat_map(|template| FADES.map(|fade| Expert { template, fade, ratio: false }));
    let ratios =
        RATIOS.map(|template| Expert { template: template as usize, fade: FADE_OF_RATIOS, ratio: true });
    plain.chain(ratios).collect()
}

/// Numbers of runs that are told apart: 1, 2, 3 to 4, 5 to 9, and more.
const COUNTS: usize = 5;
/// How well the last two runs agree: within a tenth, within a factor of e, or not.
const SPREADS: usize = 3;
pub const STATES: usize = COUNTS * SPREADS;

/// In which state an expert is that has so many runs, the last two of them so far apart in logarithms.
pub fn state(count: usize, apart: Option<f32>) -> usize {
    let count = match count {
        0 | 1 => 0,
        2 => 1,
        3..=4 => 2,
        5..=9 => 3,
        _ => 4,
    };
    let spread = match apart {
        Some(apart) if apart < 0.1 => 0,
        Some(apart) if apart >= 1.0 => 2,
        _ => 1,
    };
    count * SPREADS + spread
}

/// An expert that had something to say of a job: its number, its state then, its weight, and where its samples are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Part {
    pub expert: u16,
    pub state: u16,
    /// The mean of `weights`.
    pub weight: f32,
    /// At each speed.
    weights: [f32; SPEEDS],
    pub begins: u32,
    pub ends: u32,
}

impl Part {
    /// Without a weight.
    pub fn new(expert: usize, state: usize, begins: usize, ends: usize) -> Part {
        let (expert, state) = (expert as u16, state as u16);
        Part { expert, state, weight: 0.0, weights: [0.0; SPEEDS], begins: begins as u32, ends: ends as u32 }
    }
}

/// Scores of a user, by expert and speed; none before the first job has ended.
pub type UserScores = Vec<[f32; SPEEDS]>;

/// The scores that hold for all users, by expert, state and speed.
#[derive(Clone, Debug)]
pub struct Gate {
    scores: Vec<[[f32; SPEEDS]; STATES]>,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate { scores: vec![[[0.0; SPEEDS]; STATES]; EXPERTS] }
    }
}

impl Gate {
    /// Makes weights, with a sum of 1, from the scores.
    pub fn weigh(&self, parts: &mut [Part], user: &UserScores) {
        for speed in 0..SPEEDS {
            let score = |part: &Part| {
                let own = user.get(usize::from(part.expert)).map_or(0.0, |scores| scores[speed]);
                self.scores[usize::from(part.expert)][usize::from(part.state)][speed] + own
            };
            // Nothing overflows if the largest is taken off.
            let most = parts.iter().map(score).fold(f32::NEG_INFINITY, f32::max);
            parts.iter_mut().for_each(|part| part.weights[speed] = (score(part) - most).exp());
            let sum: f32 = parts.iter().map(|part| part.weights[speed]).sum();
            parts.iter_mut().for_each(|part| part.weights[speed] /= sum);
        }
        let mean = |part: &Part| part.weights.iter().sum::<f32>() / SPEEDS as f32;
        parts.iter_mut().for_each(|part| part.weight = mean(part));
    }

    /// The run time had a density of `densities` under each part.
    pub fn learn(&mut self, parts: &[Part], densities: &[f32], user: &mut UserScores) {
        user.resize(EXPERTS, [0.0; SPEEDS]);
        for (speed, (step, user_step)) in STEPS.into_iter().enumerate() {
            let of = |(part, density): (&Part, &f32)| part.weights[speed] * density;
            let mixed: f32 = parts.iter().zip(densities).map(of).sum();
            for (part, density) in parts.iter().zip(densities) {
                let gradient = of((part, density)) / mixed - part.weights[speed];
                let (expert, state) = (usize::from(part.expert), usize::from(part.state));
                self.scores[expert][state][speed] += step * gradient;
                user[expert][speed] += user_step * gradient;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_that_were_right_count_more_for_all_and_most_for_their_user() {
        let part = |expert| Part::new(expert, 4, 0, 0);
        let (mut gate, mut user) = (Gate::default(), Vec::new());
        for _ in 0..50 {
            let mut parts = [part(0), part(1), part(2)];
            gate.weigh(&mut parts, &user);
            assert!((parts.iter().map(|part| part.weight).sum::<f32>() - 1.0).abs() < 1e-5);
            gate.learn(&parts, &[0.5, 5.0, 0.1], &mut user);
        }
        let weights = |user: &UserScores| {
            let mut parts = [part(0), part(1), part(2)];
            gate.weigh(&mut parts, user);
            parts.map(|part| part.weight)
        };
        let (own, new) = (weights(&user), weights(&Vec::new()));
        assert!(own[1] > 0.7 && new[1] > 0.34 && new[1] < own[1], "{own:?} {new:?}");
        assert!(own[0] > own[2]);
    }

    #[test]
    fn each_expert_has_a_place() {
        assert_eq!(experts().len(), REQUEST);
        let states = [0, 1, 2, 3, 5, 10].map(|count| state(count, None));
        assert!(states.is_sorted() && states[5] < STATES);
        assert_eq!(state(10, Some(5.0)), STATES - 1);
    }
}
