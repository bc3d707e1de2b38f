//! Pictures of a run, as SVG within a page.

use super::measure::{Course, Measured};
use super::report::seconds;
use crate::page::escape;
use std::fmt::Write;
use tidepool_workload::Stage;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 220.0;
/// Room for the axes' words.
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 28.0;
const TOP: f64 = 10.0;
/// Height of an application in the time line.
const LANE: f64 = 34.0;
/// Letters of an application's name beside its lane.
const NAME_MAX: usize = 11;
/// Most points or bars of an application: a picture of more is not seen, and large. Steps are then put together.
const MARKS_MAX: usize = 600;
/// Of computing, writing, and reading.
const COMPUTE: &str = "#c9d3dc";
const WRITE: &str = "#b36b00";
const READ: &str = "#0072b2";
const LINE: &str = "#0072b2";

/// A step, or several that are next to each other.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Point {
    /// Of the first one.
    step: u64,
    min: f64,
    mean: f64,
    max: f64,
}

/// I/O time of each step that does any: the mean, and a bar from the fastest to the slowest process.
pub fn steps(course: &Course) -> String {
    let points = points(course);
    let most = points.iter().map(|point| point.max).fold(f64::MIN_POSITIVE, f64::max);
    let (first, last) = (points.first().map_or(1, |p| p.step), points.last().map_or(1, |p| p.step));
    let span = (last - first).max(1) as f64;
    let x = |step: u64| LEFT + 10.0 + (step - first) as f64 / span * (WIDTH - LEFT - 30.0);
    let y = |time: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - time / most);
    let mut out = frame(HEIGHT, "I/O time of each step");
    for share in [0.0, 0.5, 1.0] {
        let at = y(most * share);
        let _ = writeln!(out, "<path d=\"M{LEFT} {at:.1}H{WIDTH}\" stroke=\"#dddddd\"/>");
        let label = seconds(most * share);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for Point { step, min, mean, max } in &points {
        let _ = writeln!(
            out,
            "<path d=\"M{0:.1} {1:.1}V{2:.1}\" stroke=\"#555555\" stroke-width=\"1.5\"><title>step {step}: {min:.6} to {max:.6} s, \
             mean {mean:.6} s</title></path>",
            x(*step),
            y(*min),
            y(*max)
        );
    }
    let line: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x(p.step), y(p.mean))).collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{LINE}\" stroke-width=\"2\"/>",
        line.join(" ")
    );
    for point in &points {
        let (x, y) = (x(point.step), y(point.mean));
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{LINE}\"/>");
    }
    for (step, anchor) in [(first, "start"), (last, "end")] {
        let at = HEIGHT - 8.0;
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{at}\" text-anchor=\"{anchor}\">step {step}</text>",
            x(step)
        );
    }
    out + "</svg>\n<p>Line: mean of the processes. Bars: the fastest to the slowest.</p>\n"
}

fn points(course: &Course) -> Vec<Point> {
    let of = |phase: &Measured| {
        let seconds = phase.io.filter(|_| phase.stage == Stage::Step)?.seconds;
        Some(Point { step: phase.step, min: seconds.min, mean: seconds.mean, max: seconds.max })
    };
    let all: Vec<Point> = course.phases.iter().filter_map(of).collect();
    let together = |points: &[Point]| Point {
        step: points[0].step,
        min: points.iter().map(|p| p.min).fold(f64::INFINITY, f64::min),
        mean: points.iter().map(|p| p.mean).sum::<f64>() / points.len() as f64,
        max: points.iter().map(|p| p.max).fold(0.0, f64::max),
    };
    all.chunks(all.len().div_ceil(MARKS_MAX).max(1)).map(together).collect()
}

/// What each application does when.
pub fn time_line(courses: &[Course]) -> String {
    let end = courses.iter().filter_map(|course| course.phases.last()).map(Measured::ended);
    let end = end.fold(f64::MIN_POSITIVE, f64::max);
    let height = TOP + LANE * courses.len() as f64 + BOTTOM;
    let x = |time: f64| LEFT + time / end * (WIDTH - LEFT - 10.0);
    let mut out = frame(height, "Time line of the applications");
    for (course, lane) in courses.iter().zip(0..) {
        let y = TOP + LANE * f64::from(lane);
        let name = escape(&course.application.name);
        let short = escape(&cut(&course.application.name));
        let at = y + LANE / 2.0 + 4.0;
        let _ = writeln!(out, "<text x=\"2\" y=\"{at:.1}\">{short}<title>{name}</title></text>");
        for (began, ended, colour, what) in bars(course) {
            let width = (x(ended) - x(began)).max(0.3);
            let _ = writeln!(
                out,
                "<rect x=\"{:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{:.1}\" fill=\"{colour}\"><title>{name}, {what}: {began:.3} to \
                 {ended:.3} s</title></rect>",
                x(began),
                LANE - 6.0
            );
        }
    }
    for (time, anchor) in [(0.0, "start"), (end, "end")] {
        let (at, y) = (x(time), height - 8.0);
        let _ = writeln!(
            out,
            "<text x=\"{at:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
            seconds(time)
        );
    }
    out + "</svg>\n<p>Grey: computing. Brown: writing. Blue: reading. From the first process that begins to the last that ends.</p>\n"
}

/// The beginning of a long name.
fn cut(name: &str) -> String {
    match name.chars().count() > NAME_MAX {
        true => name.chars().take(NAME_MAX - 1).chain(['\u{2026}']).collect(),
        false => name.into(),
    }
}

type Bar = (f64, f64, &'static str, String);

/// A bar for each phase's computing and I/O; with too many phases, neighbours have one for all, and one for their longest
/// I/O.
fn bars(course: &Course) -> Vec<Bar> {
    let group = course.phases.len().div_ceil(MARKS_MAX).max(1);
    course
        .phases
        .chunks(group)
        .flat_map(|phases| if group == 1 { each(&phases[0]) } else { together(phases) })
        .collect()
}

fn each(phase: &Measured) -> Vec<Bar> {
    let what = format!("{} {}", phase.stage.name(), phase.step);
    let compute = phase.compute.map(|span| (span.began, span.ended, COMPUTE, format!("{what}, computing")));
    compute.into_iter().chain(io(phase, &what)).collect()
}

fn together(phases: &[Measured]) -> Vec<Bar> {
    let (first, last) = (&phases[0], &phases[phases.len() - 1]);
    let what = format!("{} {} to {} {}", first.stage.name(), first.step, last.stage.name(), last.step);
    let all = (first.began(), last.ended(), COMPUTE, what.clone());
    let length = |phase: &&Measured| phase.io.map_or(0.0, |span| span.ended - span.began);
    let longest = phases.iter().max_by(|a, b| length(a).total_cmp(&length(b)));
    std::iter::once(all).chain(longest.and_then(|phase| io(phase, &format!("{what}, the longest")))).collect()
}

fn io(phase: &Measured, what: &str) -> Option<Bar> {
    let (colour, doing) = if phase.bytes_written > 0 { (WRITE, "writing") } else { (READ, "reading") };
    phase.io.map(|span| (span.began, span.ended, colour, format!("{what}, {doing}")))
}

fn frame(height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<title>{title}</title>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::measure::{Span, Times};
    use tidepool_workload::Application;

    fn course(name: &str, steps: u64) -> Course {
        let span = |began: f64, seconds: f64| Span {
            began,
            ended: began + seconds,
            seconds: Times { min: seconds / 2.0, mean: seconds, max: seconds },
        };
        let phase = |step: u64| Measured {
            stage: Stage::Step,
            step,
            compute: Some(span(step as f64, 0.5)),
            io: Some(span(step as f64 + 0.5, 0.25)),
            bytes_written: 1,
            bytes_read: 0,
            operations: 1,
        };
        let application = Application { name: name.into(), ..Application::phases() };
        let phases = (1..=steps).map(phase).collect();
        Course { application, phases, compute_each: 0.5, derived_from: None }
    }

    #[test]
    fn each_step_has_a_bar_and_a_point() {
        let drawn = steps(&course("a", 3));
        assert_eq!((drawn.matches("<circle").count(), drawn.matches("<title>step ").count()), (3, 3));
        assert!(drawn.contains("step 2: 0.125000 to 0.250000 s"), "{drawn}");
    }

    #[test]
    fn long_runs_are_drawn_with_few_marks() {
        assert!(points(&course("a", 5_000)).len() <= MARKS_MAX);
        let one = points(&course("a", 1_200));
        assert_eq!((one.len(), one[1].step), (600, 3));
        let bars = bars(&course("a", 1_200));
        assert_eq!((bars.len(), bars[3].3.as_str()), (1_200, "step 3 to step 4, the longest, writing"));
    }

    #[test]
    fn the_time_line_has_a_lane_for_each() {
        let drawn = time_line(&[course("a", 2), course("b<", 2)]);
        assert_eq!(drawn.matches("<rect").count(), 8);
        assert!(drawn.contains(">b&lt;<title>b&lt;</title>") && !drawn.contains("b<<"), "{drawn}");
        let long = time_line(&[course("a-name-that-has-no-room", 2)]);
        assert!(long.contains(">a-name-tha\u{2026}<title>a-name-that-has-no-room</title>"), "{long}");
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert!(steps(&course("a", 0)).ends_with("</p>\n"));
        assert!(time_line(&[course("a", 0)]).ends_with("</p>\n"));
    }
}
