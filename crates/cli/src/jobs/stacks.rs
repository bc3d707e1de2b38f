//! Stacked bars of shares, a group beside the other, as SVG.

use crate::page::escape;
use std::fmt::Write;

const HEIGHT: f64 = 330.0;
const TOP: f64 = 54.0;
/// Room for the words below.
const BOTTOM: f64 = 66.0;
/// Room for the axis's words, and the rows' names below.
const LEFT: f64 = 96.0;
const RIGHT: f64 = 12.0;
/// Of a bar with its gap, and between groups.
const STEP: f64 = 50.0;
const GAP: f64 = 34.0;
/// Those of the papers' figure, told apart by people who see fewer colours.
const COLOURS: [&str; 4] = ["#3b6fb6", "#e69f00", "#2b9a6b", "#c8372d"];

pub struct Bar {
    pub name: String,
    /// From below; 1 in all.
    pub shares: [f64; 4],
    /// Mean wait and utilisation.
    pub below: [String; 2],
}

pub struct Group {
    pub name: &'static str,
    pub bars: Vec<Bar>,
}

pub fn draw(groups: &[Group], classes: &[&str; 4], title: &str) -> String {
    let bars: usize = groups.iter().map(|group| group.bars.len()).sum();
    let width = LEFT + RIGHT + bars as f64 * STEP + groups.len().saturating_sub(1) as f64 * GAP;
    let width = width.max(520.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{HEIGHT}\" viewBox=\"0 0 {width} {HEIGHT}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<title>{0}</title>\n<text x=\"{LEFT}\" y=\"16\" font-size=\"13\">{0}</text>\n",
        escape(title)
    );
    for (number, (name, colour)) in classes.iter().zip(COLOURS).enumerate() {
        let x = LEFT + number as f64 * 110.0;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"24\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{}\" y=\"33\">{}</text>",
            x + 14.0,
            escape(name)
        );
    }
    for tenth in [0, 2, 4, 6, 8, 10] {
        let y = y(f64::from(tenth) / 10.0);
        let _ = writeln!(out, "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"#dddddd\"/>", width - RIGHT);
        text(&mut out, LEFT - 6.0, y + 4.0, "end", &format!("{} %", tenth * 10));
    }
    for (row, name) in ["lambda", "mean wait", "used"].into_iter().enumerate() {
        text(&mut out, LEFT - 6.0, below(row), "end", name);
    }
    let mut x = LEFT;
    for group in groups {
        let middle = x + group.bars.len() as f64 * STEP / 2.0;
        text(&mut out, middle, TOP - 8.0, "middle", group.name);
        for bar in &group.bars {
            draw_bar(&mut out, x, bar, classes);
            x += STEP;
        }
        x += GAP;
    }
    out + "</svg>\n"
}

fn y(share: f64) -> f64 {
    TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - share)
}

fn below(row: usize) -> f64 {
    HEIGHT - BOTTOM + 18.0 + 18.0 * row as f64
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let _ =
        writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escape(words));
}

fn draw_bar(out: &mut String, x: f64, bar: &Bar, classes: &[&str; 4]) {
    let mut from = 0.0;
    for ((share, colour), class) in bar.shares.iter().zip(COLOURS).zip(classes) {
        let (top, height) = (y(from + share), y(from) - y(from + share));
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{top:.2}\" width=\"{:.1}\" height=\"{height:.2}\" fill=\"{colour}\"><title>{}, {}: {:.1} %</title></rect>",
            x + 4.0,
            STEP - 8.0,
            escape(&bar.name),
            escape(class),
            share * 100.0
        );
        from += share;
    }
    let middle = x + STEP / 2.0;
    text(out, middle, below(0), "middle", &bar.name);
    for (row, words) in bar.below.iter().enumerate() {
        text(out, middle, below(row + 1), "middle", words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bar_has_its_shares() {
        let bar = |name: &str| Bar {
            name: name.into(),
            shares: [0.5, 0.25, 0.125, 0.125],
            below: ["1.00 h".into(), "70.0 %".into()],
        };
        let groups = [
            Group { name: "a", bars: vec![bar("0.1"), bar("1")] },
            Group { name: "b", bars: vec![bar("x<y")] },
        ];
        let drawn = draw(&groups, &["i", "s", "m", "l"], "t & u");
        assert_eq!(drawn.matches("<rect").count(), 4 + 3 * 4);
        assert_eq!(drawn.matches("height=\"105.00\"").count(), 3, "{drawn}");
        assert!(drawn.contains("x&lt;y") && drawn.contains("t &amp; u") && !drawn.contains("NaN"));
    }
}
