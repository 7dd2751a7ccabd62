//! Tests of the page and of the gathered data.

use super::*;
use crate::tables::texts;
use pteron_runtime::BytesLoader;

fn hostile() -> ReportData {
    let mut to =
        Gathered::new("</title><script>alert(1)</script>.pte", "</script><img src=x onerror=alert(1)>");
    let label = to.text("<!-- </SCRIPT ><b>&amp;\u{2028}\"'`");
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
