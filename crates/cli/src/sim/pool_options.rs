//! A simulated system as options of `tidepool run` and `pool start`.
//!
//! | experiment | pool |
//! |---|---|
//! | `stripe` | `--chunk-size`, when a pool has chunks of that size |
//! | servers and their `count` | `--nodes`: a daemon for each |
//! | `weight`, when they differ | `--weights`, in the order of the classes; classes that are not striped over get none |

use serde_json::{Value, json};
use tidepool_sim_models::experiment::{Experiment, Spreading};
use tidepool_types::{CHUNK_SIZE_MAX, CHUNK_SIZE_MIN};

/// Most daemons whose weights are written out.
const WEIGHTS_SHOWN_MAX: usize = 64;

/// Options, and what they cannot say.
#[derive(PartialEq, Eq, Debug)]
pub struct Pool {
    options: Vec<String>,
    remarks: Vec<String>,
}

impl Pool {
    /// `varied`: names of the knobs that were turned.
    pub fn of(experiment: &Experiment, varied: &[&str]) -> Pool {
        let mut pool = Pool { options: Vec::new(), remarks: Vec::new() };
        let Spreading::Striped(classes) = &experiment.spreading else {
            pool.remarks.push("a pool stripes files: this layout has no options of 'tidepool run'".into());
            return pool;
        };
        pool.daemons(experiment, classes);
        pool.chunk(experiment.stripe);
        for (knob, why) in
            [("eager", "a pool has no option for it"), ("server-threads", "a pool has no option for it")]
        {
            if varied.contains(&knob) {
                pool.remarks.push(format!("{knob}: {why}"));
            }
        }
        pool
    }

    fn daemons(&mut self, experiment: &Experiment, classes: &[usize]) {
        let mut weights = Vec::new();
        for (at, servers) in experiment.servers.iter().enumerate() {
            let weight = if classes.contains(&at) { servers.weight } else { 0 };
            weights.extend(std::iter::repeat_n(weight, servers.class.count as usize));
        }
        let used: Vec<&str> = experiment
            .servers
            .iter()
            .filter(|servers| servers.class.count > 0)
            .map(|servers| servers.class.name.as_str())
            .collect();
        self.options.extend(["--nodes".to_string(), weights.len().to_string()]);
        if weights.windows(2).all(|pair| pair[0] == pair[1]) {
            return;
        }
        if weights.len() > WEIGHTS_SHOWN_MAX {
            let what =
                format!("{} daemons: give --weights of each class, {}", weights.len(), used.join(", "));
            return self.remarks.push(what);
        }
        let weights: Vec<String> = weights.iter().map(u32::to_string).collect();
        self.options.extend(["--weights".to_string(), weights.join(",")]);
        self.remarks.push(format!(
            "--weights is in the order of the pool's nodes: name those of {} in this order",
            used.join(", ")
        ));
    }

    fn chunk(&mut self, stripe: u64) {
        let (least, most) = (u64::from(CHUNK_SIZE_MIN), u64::from(CHUNK_SIZE_MAX));
        if stripe.is_power_of_two() && (least..=most).contains(&stripe) {
            self.options.extend(["--chunk-size".to_string(), size(stripe)]);
            return;
        }
        let (least, most) = (size(least), size(most));
        self.remarks.push(format!(
            "stripes of {stripe} bytes: chunks of a pool are powers of two from {least} to {most}"
        ));
    }

    pub fn value(&self) -> Value {
        json!({ "options": self.options, "remarks": self.remarks })
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        if !self.options.is_empty() {
            text += &format!("for a pool: tidepool run {} -- PROGRAM\n", self.options.join(" "));
        }
        self.remarks.iter().for_each(|remark| text += &format!("  {remark}\n"));
        text
    }
}

/// As `--chunk-size` reads it.
fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        _ => format!("{}KiB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(stripe: &str, layout: &str, varied: &[&str]) -> Pool {
        let text = format!(
            "[[device]]\nname = \"d\"\nkind = \"station\"\ntime = \"1ms\"\n\
             [[servers]]\nname = \"slow\"\ncount = 2\ndevice = \"d\"\ncapacity = \"1MiB\"\n\
             [[servers]]\nname = \"fast\"\ncount = 1\nweight = 3\ndevice = \"d\"\ncapacity = \"1MiB\"\n\
             [layout]\nstripe = \"{stripe}\"\n{layout}\n[[workload]]\nname = \"w\"\nkind = \"ior\"\n"
        );
        let read = Experiment::read(&text, &|_| Err("there is no trace".into()));
        Pool::of(&read.unwrap_or_else(|problems| panic!("{problems:?}")), varied)
    }

    #[test]
    fn what_was_best_becomes_options() {
        let both = pool("64KiB", "", &["weight.fast", "eager"]);
        assert_eq!(both.options, ["--nodes", "3", "--weights", "1,1,3", "--chunk-size", "64KiB"]);
        assert!(both.remarks[0].contains("slow, fast in this order"), "{both:?}");
        assert!(both.remarks[1].starts_with("eager: "), "{both:?}");
        let one = pool("4MiB", "servers = [\"fast\"]", &[]);
        assert_eq!(one.options, ["--nodes", "3", "--weights", "0,0,3", "--chunk-size", "4MiB"]);
        for stripe in ["96KiB", "1KiB", "32MiB"] {
            let odd = pool(stripe, "", &[]);
            assert!(!odd.options.contains(&"--chunk-size".to_string()), "{odd:?}");
            assert!(odd.remarks[1].contains("powers of two from 4KiB to 16MiB"), "{odd:?}");
        }
        let buffered = pool("64KiB", "kind = \"buffered\"\nbuffer = \"fast\"\nstore = \"slow\"", &[]);
        assert_eq!((buffered.options.len(), buffered.remarks.len()), (0, 1));
    }
}
