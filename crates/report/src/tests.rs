//! Tests of the page and of the gathered data.

use super::*;
use crate::tables::texts;
use pteron_runtime::BytesLoader;

fn hostile() -> ReportData {
    let mut to =
        Gathered::new("</title><script>alert(1)</script>.pte", "</script><img src=x onerror=alert(1)>");
    let label = to.intern("<!-- </SCRIPT ><b>&amp;\u{2028}\"'`");
    let mut sketch = Sketch::new("<svg onload=alert(1)>", GraphKind::Method);
    sketch.add_pill(label, label);
    to.add_graph(sketch);
    to.add_note("{{script}} {{data}}");
    let cells = vec![to.cell("<td>")];
    to.add_table("<h1>", "<p>", &[("<th>", Column::Text)], vec![Row { cells, link: None }]);
    to.data
}

#[test]
fn texts_of_a_file_are_data_and_never_markup() {
    let page = page(&hostile()).unwrap();
    let own = crate::page(&Gathered::new("", "").data).unwrap();
    let count = |page: &str, what: &str| page.matches(what).count();
    for what in ["<script", "</script", "<!--", "<img", "<svg", "<b>", "<td>", "<h1>", "\u{2028}"] {
        assert_eq!(count(&page, what), count(&own, what), "{what}");
    }
    // The data element holds the data, in which only characters without a visible form are escaped.
    let start = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
    let end = start + page[start..].find("</script>").unwrap();
    let data: serde_json::Value = serde_json::from_str(&page[start..end]).unwrap();
    let shown = serde_json::to_string(&hostile()).unwrap().replace('\u{2028}', r"\\u{2028}");
    assert_eq!(data, serde_json::from_str::<serde_json::Value>(&shown).unwrap());
}

#[test]
fn a_page_has_no_external_references() {
    let page = page(&hostile()).unwrap();
    for outside in ["src=\"", "href=", "@import", "url(", "fetch(", "XMLHttpRequest", "innerHTML", "eval("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn weights_are_listed_by_size() {
    let data = |bytes: &[u8]| -> Arc<dyn DataLoader> { Arc::new(BytesLoader::new(bytes.to_vec())) };
    let file =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.pte")).unwrap();
    let options = LoadOptions::new(pteron_kernels::registry());
    let report = gather(&data(&file), &options, &Measured::default()).unwrap();
    let titles: Vec<&str> = report.tables.iter().map(|t| report.strings.get(t.title)).collect();
    assert!(titles.starts_with(&["Operators"]) && titles.contains(&"Weights"), "{titles:?}");
    let weights = &report.tables[titles.iter().position(|t| *t == "Weights").unwrap()];
    let sizes: Vec<f64> = weights.rows.iter().map(|row| texts(&report, row)[3].parse().unwrap()).collect();
    assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes.len() > 3, "{sizes:?}");
    let kinds: Vec<GraphKind> = report.graphs.iter().map(|graph| graph.kind).collect();
    assert_eq!(kinds, [GraphKind::Method, GraphKind::Run]);
    // Every instruction has a node with properties and operands.
    let written = &report.graphs[0];
    assert!(written.nodes.iter().filter(|n| !n.pill).all(|n| !n.about.is_empty() && !n.operands.is_empty()));
    let linked = written.nodes.iter().filter(|n| !n.links.is_empty()).count();
    assert!(linked > 0 && report.graphs[1].nodes.len() <= written.nodes.len(), "{linked}");
}

#[test]
fn a_comparison_has_tables_of_outputs_and_layers() {
    use pteron_toolbox::comparison::{Closeness, Comparison, Layer, OutputComparison};
    let file: &[u8] = include_bytes!("../../../examples/digits/digits.pte");
    let loader: Arc<dyn DataLoader> = Arc::new(BytesLoader::new(file.to_vec()));
    let options = LoadOptions::new(pteron_kernels::registry());
    let closeness = |largest| Closeness { largest, sqnr: f64::INFINITY, cosine: 1.0 };
    let layer = |name: &str, differs| Layer {
        a: name.to_owned(),
        b: name.to_owned(),
        source: None,
        sizes: vec![1],
        closeness: closeness(0.25),
        differs,
    };
    let comparison = Comparison {
        method: "forward".to_owned(),
        samples: 1,
        min_sqnr: None,
        outputs: vec![OutputComparison {
            name: Some("scores".to_owned()),
            closeness: Some(closeness(0.5)),
            same_top: Some(1.0),
            difference: None,
        }],
        layers: vec![layer("conv", false), layer("gelu", true), layer("linear", true)],
        unpaired: [2, 3],
        first: Some(1),
        instruction: None,
        agree: false,
    };
    let measured = Measured { comparison: Some((&comparison, "other.pte")), ..Measured::default() };
    let report = gather(&loader, &options, &measured).unwrap();
    let rows_of = |title: &str| -> Vec<Vec<String>> {
        let table = report.tables.iter().find(|table| report.strings.get(table.title) == title).unwrap();
        table.rows.iter().map(|row| texts(&report, row)).collect()
    };
    assert_eq!(rows_of("Outputs"), [["scores", "0.5", "inf", "1", "100.0 %", ""]]);
    let marks: Vec<String> = rows_of("Layers").into_iter().map(|row| row[5].clone()).collect();
    assert_eq!(marks, ["", "first to differ", "differs"]);
}
