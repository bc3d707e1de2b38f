//! Figures of a measured device from runs (INVENTORY L21): least squares of the logarithm of rates against what the simulated
//! device does with as many clients. Rates span four orders of magnitude, and an error of a tenth is one for all of them. A
//! configuration counts once, with the median of its repeats: one disturbed run says nothing of the device.

use super::closed::{COUNT, Drawn, Draws, Figures, Stages, rate};
use super::run::{Config, Run, medians};
use crate::device::{Cost, MeasuredSpec};
use crate::span::Span;
use std::fmt;
use tidepool_sim::{Stream, Time};

/// Configurations that a direction needs.
pub const CONFIGS_MIN: usize = 4;
/// Repeats of an uncertainty.
pub const REPEATS_MAX: usize = 10_000;
/// Lanes that are tried; more than there are clients are as good as any.
const LANES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Beyond this distance of logarithms a run counts as an outlier, linearly.
const OUTLIER: f64 = 0.15;
/// Steps of a fit, and what one has to bring.
const STEPS_MAX: usize = 20;
const GAIN_MIN: f64 = 1e-3;
/// Figures end here, in nanoseconds: an unlimited rate has to be some number.
const FIGURE_RANGE: (f64, f64) = (1e-6, 1e12);
/// Holds figures that the runs do not show near where they began.
const PULL: f64 = 1e-3;
/// Of a run: rates are never exact, and below a thousandth of an error there is nothing to tell apart.
const EXACT: f64 = 5e-7;
/// Longest times of a request after which its bytes would take twice as long, where a fit begins.
const UNCROWDED: f64 = 10.0;
/// Structures that are nearer than this by Schwarz's criterion are not told apart (Kass and Raftery 1995: "not worth more than a bare
/// mention").
const TOLD_APART: f64 = 2.0;
/// Turns of the search for the stages.
const TURNS: usize = 2;
/// Parts that a fit is judged by, each left out once.
const FOLDS: usize = 5;

/// Both orders of a direction cost the same unless telling them apart is worth it (Schwarz's criterion).
#[derive(Clone, PartialEq, Debug)]
pub struct Fitted {
    pub spec: MeasuredSpec,
    /// Which classes have runs.
    pub seen: [bool; 4],
    /// What the runs do not show, or what was decided by them.
    pub notes: Vec<String>,
    pub structure: Structure,
    figures: [Figures; 4],
}

/// What is decided once, and kept for intervals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Structure {
    pub stages: Stages,
    /// Whether the orders of reads, of writes have figures of their own.
    pub apart: [bool; 2],
}

/// Names of a class's figures, as files have them.
pub const FIGURES: [&str; COUNT] = ["operation", "rate", "setup", "lane-rate", "batch", "crowding"];
/// Those which are rates; the others are nanoseconds.
const RATES: [bool; COUNT] = [false, true, false, true, false, false];

/// Whether a device of these stages has the figure.
fn is_there(figure: usize, stages: &Stages) -> bool {
    match FIGURES[figure] {
        "batch" => stages.batched,
        "crowding" => stages.crowded,
        _ => true,
    }
}

/// Those that Schwarz's criterion counts. Crowding is free: it begins where it does next to nothing, and is held there unless runs
/// say otherwise; devices that have it show it in few runs, which half of them may lack.
fn numbers(stages: &Stages) -> usize {
    (0..COUNT).filter(|figure| is_there(*figure, stages) && FIGURES[*figure] != "crowding").count()
}

#[derive(Clone, PartialEq, Debug)]
pub struct Interval {
    /// `random-read.setup`
    pub name: String,
    /// Nanoseconds, or bytes/s.
    pub low: f64,
    pub high: f64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FitError {
    NoRuns,
    TooFew { direction: &'static str, configs: usize },
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FitError::NoRuns => f.write_str("there are no runs"),
            FitError::TooFew { direction, configs } => write!(
                f,
                "{configs} sizes and numbers of clients of {direction}; a fit needs {CONFIGS_MIN} and better twice that"
            ),
        }
    }
}

impl std::error::Error for FitError {}

/// What was measured in one configuration.
struct Point {
    config: Config,
    /// Logarithms of medians of rates: of both orders where these are fitted together, and again for each time that it was drawn.
    logs: Vec<f64>,
}

/// What [`medians`] says of each configuration.
fn middles(runs: &[Run]) -> Vec<Run> {
    medians(runs).into_iter().map(|(run, _)| run).collect()
}

fn points(runs: &[Run], wanted: impl Fn(&Config) -> bool) -> Vec<Point> {
    let mut sorted: Vec<&Run> = runs.iter().filter(|run| wanted(&run.config)).collect();
    // The costs of both orders are fitted together at times: then they are one configuration.
    let key = |run: &Run| (run.config.bytes, run.config.clients);
    sorted.sort_by_key(|run| key(run));
    let same = sorted.chunk_by(|a, b| key(a) == key(b));
    same.map(|all| Point { config: all[0].config, logs: all.iter().map(|r| r.rate.ln()).collect() }).collect()
}

struct Fitter<'a> {
    points: &'a [Point],
    stages: Stages,
    draws: &'a Draws,
    /// Logarithms of where figures began.
    began: [f64; COUNT],
}

impl Fitter<'_> {
    fn predicted(&self, logs: &[f64; COUNT]) -> Vec<f64> {
        let figures = logs.map(f64::exp);
        let of = |point: &Point| rate(&figures, self.stages, self.draws, &point.config).ln();
        self.points.iter().map(of).collect()
    }

    fn cost(&self, logs: &[f64; COUNT], predicted: &[f64]) -> f64 {
        let runs = self
            .points
            .iter()
            .zip(predicted)
            .flat_map(|(point, p)| point.logs.iter().map(move |log| p - log));
        let pulls = logs.iter().zip(&self.began).map(|(now, began)| 0.5 * PULL * (now - began).powi(2));
        runs.map(loss).sum::<f64>() + pulls.sum::<f64>()
    }

    /// Levenberg and Marquardt's way, with weights that outliers lose.
    fn run(&self, mut logs: [f64; COUNT]) -> ([f64; COUNT], f64) {
        let mut predicted = self.predicted(&logs);
        let mut cost = self.cost(&logs, &predicted);
        let mut damping = 1e-2;
        for _ in 0..STEPS_MAX {
            let slopes: Vec<Vec<f64>> = (0..COUNT)
                .map(|at| {
                    const STEP: f64 = 0.02;
                    let mut moved = logs;
                    moved[at] += STEP;
                    self.predicted(&moved).iter().zip(&predicted).map(|(a, b)| (a - b) / STEP).collect()
                })
                .collect();
            let (matrix, right) = self.normal(&logs, &predicted, &slopes);
            let before = cost;
            while damping < 1e6 {
                let mut damped = matrix;
                (0..COUNT).for_each(|at| damped[at][at] *= 1.0 + damping);
                let step = solve(damped, right);
                let (low, high) = (FIGURE_RANGE.0.ln(), FIGURE_RANGE.1.ln());
                let next: [f64; COUNT] =
                    std::array::from_fn(|at| (logs[at] + step[at].clamp(-1.5, 1.5)).clamp(low, high));
                let seen = self.predicted(&next);
                let found = self.cost(&next, &seen);
                if found < cost {
                    (logs, predicted, cost, damping) = (next, seen, found, damping * 0.3);
                    break;
                }
                damping *= 4.0;
            }
            if before - cost < GAIN_MIN * before.max(1e-9) {
                break;
            }
        }
        (logs, cost)
    }

    fn normal(
        &self,
        logs: &[f64; COUNT],
        predicted: &[f64],
        slopes: &[Vec<f64>],
    ) -> ([[f64; COUNT]; COUNT], [f64; COUNT]) {
        let (mut matrix, mut right) = ([[0.0; COUNT]; COUNT], [0.0; COUNT]);
        for (at, point) in self.points.iter().enumerate() {
            for log in &point.logs {
                let off = predicted[at] - log;
                let weight = (OUTLIER / off.abs()).min(1.0);
                for i in 0..COUNT {
                    right[i] -= weight * slopes[i][at] * off;
                    (0..COUNT).for_each(|j| matrix[i][j] += weight * slopes[i][at] * slopes[j][at]);
                }
            }
        }
        for i in 0..COUNT {
            matrix[i][i] += PULL;
            right[i] -= PULL * (logs[i] - self.began[i]);
        }
        (matrix, right)
    }
}

/// Half the square, beyond [`OUTLIER`] a line (Huber).
fn loss(off: f64) -> f64 {
    let off = off.abs();
    if off < OUTLIER { 0.5 * off * off } else { OUTLIER * (off - 0.5 * OUTLIER) }
}

/// Gauss with pivots; the matrix is regular, as its diagonal was raised.
fn solve(mut matrix: [[f64; COUNT]; COUNT], mut right: [f64; COUNT]) -> [f64; COUNT] {
    for at in 0..COUNT {
        let pivot =
            (at..COUNT).max_by(|a, b| matrix[*a][at].abs().total_cmp(&matrix[*b][at].abs())).unwrap_or(at);
        matrix.swap(at, pivot);
        right.swap(at, pivot);
        for below in at + 1..COUNT {
            let factor = matrix[below][at] / matrix[at][at];
            let upper = matrix[at];
            (at..COUNT).for_each(|column| matrix[below][column] -= factor * upper[column]);
            right[below] -= factor * right[at];
        }
    }
    let mut found = [0.0; COUNT];
    for at in (0..COUNT).rev() {
        let rest: f64 = (at + 1..COUNT).map(|column| matrix[at][column] * found[column]).sum();
        found[at] = (right[at] - rest) / matrix[at][at];
    }
    found.map(|step| if step.is_finite() { step } else { 0.0 })
}

/// Where a fit begins: how the time of a lone small request, and of a lone byte of a large one, are shared among the stages.
fn starts(points: &[Point]) -> [[f64; COUNT]; 3] {
    let time = |point: &Point| f64::from(point.config.clients) * 1e9 / mean(&point.logs).exp();
    let least = points.iter().map(time).fold(f64::INFINITY, f64::min);
    let per_byte = |point: &Point| 1e9 / mean(&point.logs).exp() / f64::from(point.config.bytes);
    let byte = points.iter().map(per_byte).fold(f64::INFINITY, f64::min);
    let longest = points.iter().map(time).fold(0.0, f64::max);
    [(0.3, 0.8), (0.05, 0.1), (0.9, 0.5)].map(|(operation, shared)| {
        let figures = [
            least * operation,
            byte * shared,
            least * (1.0 - operation),
            byte * (1.05 - shared),
            least * operation,
            longest * UNCROWDED,
        ];
        figures.map(f64::ln)
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Figures in logarithms and what they cost.
fn best(points: &[Point], stages: Stages, draws: &Draws, from: Option<[f64; COUNT]>) -> ([f64; COUNT], f64) {
    let all = starts(points);
    let tries = from.map_or(all.to_vec(), |from| vec![from]);
    let fits = tries.into_iter().map(|start| Fitter { points, stages, draws, began: all[0] }.run(start));
    fits.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((all[0], f64::INFINITY))
}

const DIRECTIONS: [(&str, bool); 2] = [("reads", false), ("writes", true)];

/// Fits a device to runs. Directions without runs cost what the other one does.
pub fn fit(runs: &[Run]) -> Result<Fitted, FitError> {
    check(runs)?;
    let (middles, draws) = (middles(runs), Draws::new());
    let search = Search::new(&middles, &draws);
    Ok(with(&middles, search.structure(), None, &draws))
}

/// Configurations of a direction, as one and each order by itself.
struct Side {
    together: Vec<Point>,
    /// None where an order has too few for figures of its own.
    orders: Option<[Vec<Point>; 2]>,
}

impl Side {
    fn new(middles: &[Run], is_write: bool) -> Side {
        let of = |order: Option<bool>| {
            let wanted = |config: &Config| {
                config.is_write == is_write && order.is_none_or(|is_random| config.is_random == is_random)
            };
            points(middles, wanted)
        };
        let orders = [false, true].map(|is_random| of(Some(is_random)));
        let enough = orders.iter().all(|points| points.len() >= CONFIGS_MIN);
        Side { together: of(None), orders: enough.then_some(orders) }
    }
}

/// Looks for the structure that explains what was measured with the fewest numbers.
struct Search<'a> {
    sides: [Side; 2],
    /// Configurations.
    count: f64,
    /// Of any configuration.
    clients: u32,
    draws: &'a Draws,
}

impl Search<'_> {
    fn new<'a>(middles: &[Run], draws: &'a Draws) -> Search<'a> {
        let sides = DIRECTIONS.map(|(_, is_write)| Side::new(middles, is_write));
        let clients = middles.iter().map(|run| run.config.clients).max().unwrap_or(1);
        Search { sides, count: middles.len() as f64, clients, draws }
    }

    /// What is drawn, whether more clients are a burden, and the rest, in turn: all of them together would take long.
    fn structure(&self) -> Structure {
        let mut stages =
            Stages { lanes: 1, joined: false, batched: false, crowded: false, drawn: Drawn::Operation };
        for _ in 0..TURNS {
            let before = stages;
            let kinds = [(false, false), (false, true), (true, false), (true, true)];
            // Lanes that no client could use change nothing.
            let lanes = LANES.into_iter().filter(|lanes| *lanes < 2 * self.clients);
            let each = lanes
                .flat_map(|lanes| kinds.map(|(joined, batched)| Stages { lanes, joined, batched, ..before }));
            stages = self.widest(each).unwrap_or(stages);
            let drawn = Drawn::ALL.into_iter().map(|drawn| Stages { drawn, ..stages });
            stages = self.least(drawn).unwrap_or(stages);
            let crowded = [false, true].into_iter().map(|crowded| Stages { crowded, ..stages });
            stages = self.least(crowded).unwrap_or(stages);
            if (stages.drawn, stages.crowded) == (before.drawn, before.crowded) {
                break;
            }
        }
        self.worth(stages, Begin::Everywhere).1
    }

    fn least(&self, all: impl Iterator<Item = Stages>) -> Option<Stages> {
        least(&self.worths(all))
    }

    /// Like the least, with as many lanes as are not told apart from its own: a lane that is not there would be a wall for runs that
    /// were not measured, and one too many is none.
    fn widest(&self, all: impl Iterator<Item = Stages>) -> Option<Stages> {
        let all = self.worths(all);
        let found = least(&all)?;
        let worth = |stages: Stages| all.iter().find(|one| one.1 == stages).map(|one| one.0);
        let bound = worth(found)? + TOLD_APART;
        let alike = all.iter().filter(|(_, stages)| Stages { lanes: found.lanes, ..*stages } == found);
        alike.filter(|one| one.0 < bound).map(|one| one.1).max_by_key(|stages| stages.lanes)
    }

    fn worths(&self, all: impl Iterator<Item = Stages>) -> Vec<(f64, Stages)> {
        all.map(|stages| (self.worth(stages, Begin::Once).0, stages)).collect()
    }

    /// Schwarz's criterion, with the better of one set of figures for both orders and one for each.
    fn worth(&self, stages: Stages, begin: Begin) -> (f64, Structure) {
        let cost = |points: &[Point]| self.cost(points, stages, begin);
        let joint = self.sides.each_ref().map(|side| cost(&side.together));
        let apart = self.sides.each_ref().map(|side| {
            side.orders.as_ref().map(|orders| orders.iter().map(|points| cost(points)).sum::<f64>())
        });
        let of = |structure: Structure| {
            let (mut sum, mut figures) = (0.0, 0);
            for at in 0..2 {
                let is_there = !self.sides[at].together.is_empty();
                let (cost, sets) = if structure.apart[at] { (apart[at]?, 2) } else { (joint[at], 1) };
                sum += cost;
                figures += usize::from(is_there) * sets * numbers(&stages);
            }
            let floor = self.count * EXACT;
            Some((self.count * (sum + floor).ln() + figures as f64 * self.count.ln(), structure))
        };
        let both = [false, true];
        let all = both
            .into_iter()
            .flat_map(|reads| both.map(|writes| Structure { stages, apart: [reads, writes] }));
        let found = all.filter_map(of).min_by(|a, b| a.0.total_cmp(&b.0));
        found.unwrap_or((f64::INFINITY, Structure { stages, apart: [false; 2] }))
    }

    fn cost(&self, points: &[Point], stages: Stages, begin: Begin) -> f64 {
        let from = match begin {
            _ if points.is_empty() => return 0.0,
            Begin::Once => Some(starts(points)[0]),
            Begin::Everywhere => None,
        };
        best(points, stages, self.draws, from).1
    }
}

fn least(all: &[(f64, Stages)]) -> Option<Stages> {
    all.iter().min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, stages)| *stages)
}

/// From where figures are looked for: one start tells structures apart, but two sets of figures not from one.
#[derive(Clone, Copy)]
enum Begin {
    Once,
    Everywhere,
}

fn check(runs: &[Run]) -> Result<(), FitError> {
    if runs.is_empty() {
        return Err(FitError::NoRuns);
    }
    for (direction, is_write) in DIRECTIONS {
        let configs = points(runs, |config| config.is_write == is_write).len();
        if (1..CONFIGS_MIN).contains(&configs) {
            return Err(FitError::TooFew { direction, configs });
        }
    }
    Ok(())
}

/// With a structure that is known, from figures that are near.
fn with(middles: &[Run], structure: Structure, near: Option<&[Figures; 4]>, draws: &Draws) -> Fitted {
    let Structure { stages, apart } = structure;
    let mut found: [Option<Figures>; 4] = [None; 4];
    let mut seen = [false; 4];
    for (direction, (_, is_write)) in DIRECTIONS.into_iter().enumerate() {
        for is_random in [false, true] {
            let class = crate::device::class(is_write, is_random);
            seen[class] = middles.iter().any(|run| run.config.class() == class);
            let wanted = |config: &Config| {
                config.is_write == is_write && (!apart[direction] || config.is_random == is_random)
            };
            let points = points(middles, wanted);
            if !points.is_empty() {
                let from = near.map(|near| near[class].map(f64::ln));
                found[class] = Some(best(&points, stages, draws, from).0.map(f64::exp));
            }
        }
    }
    let figures = [0, 1, 2, 3].map(|at: usize| {
        let like = [at, at ^ 1, at ^ 2, at ^ 3];
        like.into_iter().find_map(|at| found[at]).unwrap_or([0.0; COUNT])
    });
    let costs = figures.map(|figures| cost(&figures, stages));
    let spec = MeasuredSpec {
        lanes: stages.lanes,
        joined: stages.joined,
        costs,
        open: Span::NONE,
        flush: Span::NONE,
    };
    Fitted { spec, seen, notes: notes(middles, structure, seen), structure, figures }
}

fn cost(figures: &Figures, stages: Stages) -> Cost {
    let drawn = stages.drawn;
    let time = |ns: f64| Time(ns.round() as u64);
    let rate = |ns: f64| if ns > 0.0 { (1e9 / ns).round().min((1u64 << 50) as f64) as u64 } else { 0 };
    let span = |ns: f64, is_drawn: bool| match time(ns) {
        time if is_drawn && time > Time::ZERO => Span::Exponential(time),
        time => Span::Fixed(time),
    };
    Cost {
        operation: span(figures[0], drawn != Drawn::Nothing),
        batch: if stages.batched { Span::Fixed(time(figures[4])) } else { Span::NONE },
        rate: rate(figures[1]),
        crowding: if stages.crowded { time(figures[5]) } else { Time::ZERO },
        setup: span(figures[2], drawn == Drawn::Both),
        lane_rate: rate(figures[3]),
    }
}

fn notes(runs: &[Run], structure: Structure, seen: [bool; 4]) -> Vec<String> {
    let mut notes = Vec::new();
    for (direction, (name, _)) in DIRECTIONS.into_iter().enumerate() {
        let [sequential, random] = [seen[2 * direction], seen[2 * direction + 1]];
        match (sequential, random) {
            (false, false) => {
                notes.push(format!("no {name}: they are taken for as fast as the other direction"))
            }
            (true, true) if !structure.apart[direction] => {
                notes.push(format!("{name}: sequential and random are not told apart by these runs"));
            }
            (true, true) => {}
            _ => notes.push(format!("{name}: only one order; the other is taken for as fast")),
        }
    }
    let most = runs.iter().map(|run| run.config.clients).max().unwrap_or(1);
    if structure.stages.lanes >= most {
        notes.push(format!(
            "lanes: as many as clients or more ({most}); runs with more clients may find an end of them"
        ));
    }
    notes
}

fn scalars(figures: &[Figures; 4], seen: [bool; 4], stages: &Stages) -> Vec<(String, f64)> {
    let names = crate::experiment::measured::COSTS;
    let mut all = Vec::new();
    for class in (0..4).filter(|class| seen[*class]) {
        for (at, name) in FIGURES.into_iter().enumerate().filter(|(at, _)| is_there(*at, stages)) {
            let value = figures[class][at];
            all.push((format!("{}.{name}", names[class]), if RATES[at] { 1e9 / value } else { value }));
        }
    }
    all
}

impl Fitted {
    /// Names and values: nanoseconds, and bytes/s.
    pub fn scalars(&self) -> Vec<(String, f64)> {
        scalars(&self.figures, self.seen, &self.structure.stages)
    }

    /// Requests/s, without the event kernel.
    pub fn rate(&self, config: &Config) -> f64 {
        rate(&self.figures[config.class()], self.structure.stages, &Draws::new(), config)
    }
}

/// Where nine of ten fits to configurations drawn again lie. The structure stays.
pub fn uncertainty(fitted: &Fitted, runs: &[Run], repeats: usize, seed: u64) -> Vec<Interval> {
    let draws = Draws::new();
    let mut stream = Stream::new(seed, 0);
    let groups = middles(runs);
    let mut samples: Vec<Vec<f64>> = Vec::new();
    for _ in 0..repeats {
        let chosen: Vec<Run> =
            (0..groups.len()).map(|_| groups[stream.below(groups.len() as u64) as usize]).collect();
        if check(&chosen).is_err() {
            continue;
        }
        let refitted = with(&chosen, fitted.structure, Some(&fitted.figures), &draws);
        samples.push(
            scalars(&refitted.figures, fitted.seen, &fitted.structure.stages)
                .into_iter()
                .map(|(_, value)| value)
                .collect(),
        );
    }
    let of = |(at, (name, _)): (usize, (String, f64))| {
        let mut all: Vec<f64> = samples.iter().map(|sample| sample[at]).collect();
        all.sort_by(f64::total_cmp);
        let quantile = |share: f64| all[((all.len() - 1) as f64 * share).round() as usize];
        (!all.is_empty()).then(|| Interval { name, low: quantile(0.05), high: quantile(0.95) })
    };
    fitted.scalars().into_iter().enumerate().filter_map(of).collect()
}

/// Distances of logarithms of runs from fits that have not seen their configuration: each of five parts is left out once.
pub fn left_out(fitted: &Fitted, runs: &[Run], seed: u64) -> Vec<f64> {
    let draws = Draws::new();
    let configs: Vec<Config> = medians(runs).into_iter().map(|(run, _)| run.config).collect();
    let count = configs.len() as u64;
    let fold = |config: &Config| {
        let at = configs.binary_search(config).unwrap_or(0) as u64;
        crate::workload::permuted(at, count, seed) as usize % FOLDS
    };
    let mut off = Vec::new();
    for part in 0..FOLDS {
        let (out, kept): (Vec<Run>, Vec<Run>) = runs.iter().partition(|run| fold(&run.config) == part);
        if check(&kept).is_err() {
            continue;
        }
        let refitted = with(&middles(&kept), fitted.structure, Some(&fitted.figures), &draws);
        for run in out {
            let predicted =
                rate(&refitted.figures[run.config.class()], fitted.structure.stages, &draws, &run.config);
            off.push((predicted / run.rate).ln().abs());
        }
    }
    off
}
