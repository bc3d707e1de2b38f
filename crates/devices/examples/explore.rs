use std::io::{BufReader, Read};
use tidepool_devices::disk::{fit, judge, Class};
use tidepool_devices::trace;
fn main() {
    for name in ["atlas10k", "cheetah9LP", "ibm18es"] {
        let dir = std::env::args().nth(1).unwrap();
        let open = |ext: &str| std::fs::File::open(format!("{dir}/{name}.{ext}")).unwrap();
        let t = trace::measured::read(BufReader::new(flate2::read::GzDecoder::new(open("trace.gz")))).unwrap();
        let mut s = String::new();
        open("seek").read_to_string(&mut s).unwrap();
        let seeks = trace::seeks::read(s.as_bytes()).unwrap();
        let specs = trace::specs::read(BufReader::new(open("diskspecs"))).unwrap();
        for (label, ev) in [
            ("seek+specs", fit::Evidence { seeks: Some(seeks.clone()), specs }),
            ("seek", fit::Evidence { seeks: Some(seeks.clone()), ..Default::default() }),
            ("alone", fit::Evidence::default()),
        ] {
            let (a, b) = t.split_at(t.len() / 2);
            for (dir, a, b) in [("1->2", a, b), ("2->1", b, a)] {
                let start = std::time::Instant::now();
                let f = fit::fit(a, &ev).unwrap();
                let took = start.elapsed();
                let pairs = judge::replay(&f.model, b, 1);
                let s = judge::score(&pairs);
                let base = judge::Score::of(judge::baseline(a, b, 1));
                println!("{name} {label} {dir} mean {:.1} sim {:.1} err {:+.3}% demerit {:.4} per-request {:.3} corr {:.3} | base err {:+.3}% dem {:.4} per {:.3} corr {:.3} fit {:?}", s.measured_mean_us, s.simulated_mean_us, 100.*s.mean_error(), s.demerit, s.per_request, s.correlation, 100.*base.mean_error(), base.demerit, base.per_request, base.correlation, took);
                if dir == "1->2" {
                    println!("  {:?} {:?} rot {:.0} media {:.1}", f.model.cache, f.model.write_back, f.model.rotation_us, f.model.media_sector_us);
                    if label != "seek+specs" { match &f.model.seek { tidepool_devices::disk::Seek::Points{sectors_per_cylinder,..} => println!("  spc {sectors_per_cylinder}"), o => println!("  {o:?}") } }
                    println!("  {:?}", f.notes);
                    if label == "seek+specs" { for c in Class::all() {
                        let p: Vec<_> = pairs.iter().filter(|p| p.class == c).copied().collect();
                        if let Some(cost) = &f.model.costs[c.index()] {
                            let s = judge::score(&p);
                            println!("   {:36} n {:5} meas {:8.1} sim {:8.1} | sector {:.2} share {:.3} wait {:.0} [{:.0} {:.0} {:.0}]", c.name(), s.requests, s.measured_mean_us, s.simulated_mean_us, cost.sector_us, cost.seek_share, cost.wait.mean(), cost.wait.at(0.), cost.wait.at(0.5), cost.wait.at(1.));
                        }
                    }}
                }
            }
        }
    }
}
