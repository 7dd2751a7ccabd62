use super::{Closeness, Comparison, Layer};
use crate::show;

/// Maximum number of layers that are listed without `all`.
const MAX_LISTED: usize = 12;

impl Comparison {
    /// The comparison as text; with `all`, it lists every layer.
    pub fn text(&self, all: bool) -> String {
        let samples = show::count(self.samples, "sample");
        let mut out = format!("{}: {samples} compared\n", show::name(&self.method));
        let mut rows =
            vec![["", "largest difference", "SQNR", "cosine", "same top", ""].map(str::to_owned).to_vec()];
        for (index, output) in self.outputs.iter().enumerate() {
            let name = output
                .name
                .as_ref()
                .map_or_else(|| format!("output {index}"), |name| show::name(name).to_string());
            let mut row = vec![name];
            row.extend(closeness_cells(output.closeness.as_ref()));
            row.push(
                output.same_top.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share)),
            );
            row.push(output.difference.as_ref().map_or_else(String::new, |_| "differs".to_owned()));
            rows.push(row);
        }
        out += &show::table(rows, "<>>>><", 2);
        let [a, b] = self.unpaired;
        out += &format!("layers: {} that both have, {a} and {b} that one has\n", self.layers.len());
        out += &self.layers_text(all);
        for output in self.outputs.iter().filter_map(|output| output.difference.as_ref()) {
            out += &format!("  {}\n", show::line(output));
        }
        out += match (self.agree, self.min_sqnr) {
            (true, None) => "the programs agree\n".to_owned(),
            (true, Some(min)) => {
                format!("the programs agree: signal-to-noise ratios are at least {min} dB\n")
            }
            (false, _) => self.divergence_text(),
        }
        .as_str();
        out
    }

    fn layers_text(&self, all: bool) -> String {
        let mut worst: Vec<usize> = (0..self.layers.len()).collect();
        if !all {
            worst.retain(|&at| self.layers[at].differs || self.layers[at].closeness.sqnr < 60.0);
            worst.sort_by(|&a, &b| self.layers[a].closeness.sqnr.total_cmp(&self.layers[b].closeness.sqnr));
            worst.truncate(MAX_LISTED);
            worst.sort_unstable();
        }
        let row = |&at: &usize| {
            let layer = &self.layers[at];
            let mark = match (self.first == Some(at), layer.differs) {
                (true, _) => "first to differ",
                (_, true) => "differs",
                _ => "",
            };
            let mut row = closeness_cells(Some(&layer.closeness)).to_vec();
            row.extend([layer.b.clone(), mark.to_owned()]);
            row
        };
        show::table(worst.iter().map(row).collect(), ">>><<", 2)
    }

    fn divergence_text(&self) -> String {
        let Some(layer) = self.first.and_then(|first| self.layers.get(first)) else {
            return match &self.instruction {
                Some(instruction) => format!("the programs part at {}\n", show::line(instruction)),
                None => "the programs differ, at no layer that both have\n".to_owned(),
            };
        };
        let Layer { a, b, source, .. } = layer;
        let mut out = format!("the programs part at {}\n", show::line(b));
        if a != b {
            out += &format!("  in the first: {}\n", show::line(a));
        }
        if let Some(instruction) = self.instruction.as_ref().filter(|instruction| *instruction != b) {
            out += &format!("  as written: {}\n", show::line(instruction));
        }
        if let Some(source) = source {
            out += &format!("  from {}\n", show::line(source));
        }
        out
    }
}

/// The cells for largest difference, signal-to-noise ratio and cosine.
fn closeness_cells(closeness: Option<&Closeness>) -> [String; 3] {
    let Some(Closeness { largest, sqnr, cosine }) = closeness else {
        return ["-", "-", "-"].map(str::to_owned);
    };
    let sqnr = if *sqnr == f64::INFINITY { "equal".to_owned() } else { format!("{sqnr:.1} dB") };
    [format!("{largest:.3e}"), sqnr, format!("{cosine:.6}")]
}
