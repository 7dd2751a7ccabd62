//! Tests the report page in a browser: its appearance, that it logs no errors, and its drawing speed. The tests are ignored
//! by default because they need Chromium: `PTERON_CHROMIUM`, or `chromium` on the path.
//!
//! `BLESS=1 cargo test -p pteron-report --test page -- --ignored` updates the expected pictures.

use image::RgbImage;
use pteron_report::layout::{Input, layout};
use pteron_report::{Edge, Graph, GraphKind, Measured, Node, ReportData, gather, page};
use pteron_runtime::{DataLoader, FileLoader, LoadOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

/// Time limit to load a page with 6,000 nodes and draw it twice (its top, and the whole graph). It takes about a second;
/// the limit allows for a busy machine.
const MAX_MILLISECONDS: u64 = 3_000;
/// Side of the blocks of a picture that are compared, and the tolerance of their mean colours: fonts differ between
/// machines.
const BLOCK: u32 = 24;
const TOLERANCE: f64 = 26.0;

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pteron-page-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Opens a page in Chromium with these options. Fails if the page logs to the console.
    fn open(&self, html: &str, address: &str, options: &[&str]) -> Output {
        let file = self.0.join("page.html");
        std::fs::write(&file, html).unwrap();
        let profile = self.0.join("profile");
        let browser = std::env::var_os("PTERON_CHROMIUM").unwrap_or_else(|| "chromium".into());
        let quiet = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            "--window-size=1200,800",
        ];
        let mut command = Command::new(browser);
        command.args(quiet).arg(format!("--user-data-dir={}", profile.display())).args(options);
        let output = command.arg(format!("file://{}#{address}", file.display())).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert!(said.is_empty(), "{said:#?}");
        output
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn digits() -> ReportData {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let loader: Arc<dyn DataLoader> =
        Arc::new(FileLoader::open(root.join("examples/digits/digits.pte")).unwrap());
    let mut data =
        gather(&loader, &LoadOptions::new(pteron_kernels::registry()), &Measured::default()).unwrap();
    data.file = "examples/digits/digits.pte".to_owned();
    data
}

#[test]
#[ignore = "needs Chromium"]
fn the_page_matches_the_expected_pictures() {
    let folder = Folder::new("look");
    let html = page(&digits()).unwrap();
    let taken = folder.0.join("taken.png");
    for theme in ["light", "dark"] {
        let shot = format!("--screenshot={}", taken.display());
        folder.open(&html, &format!("node=2&theme={theme}"), &[&shot, "--virtual-time-budget=2000"]);
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/page/digits-{theme}.png"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::copy(&taken, &kept).unwrap();
        }
        let read = |path: &Path| image::open(path).unwrap().to_rgb8();
        let worst = furthest(&read(&taken), &read(&kept));
        assert!(worst < TOLERANCE, "{theme}: blocks are {worst} apart");
    }
}

#[test]
#[ignore = "needs Chromium"]
fn tabs_move_to_a_line_of_their_own_in_narrow_windows() {
    let folder = Folder::new("narrow");
    let html = page(&digits()).unwrap();
    for (size, is_narrow) in [("--window-size=1600,700", false), ("--window-size=600,700", true)] {
        let output = folder.open(&html, "measure", &["--dump-dom", size]);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(shown.contains("<header class=\"narrow\">"), is_narrow, "{size}");
    }
}

/// The 99th percentile of the difference between the mean colours of blocks, on a scale of 256.
fn furthest(a: &RgbImage, b: &RgbImage) -> f64 {
    assert_eq!(a.dimensions(), b.dimensions());
    let mean = |picture: &RgbImage, left: u32, top: u32| {
        let mut sum = [0.0; 3];
        for (x, y) in (0..BLOCK * BLOCK).map(|i| (left + i % BLOCK, top + i / BLOCK)) {
            let pixel = picture.get_pixel(x, y).0;
            (0..3).for_each(|c| sum[c] += f64::from(pixel[c]) / f64::from(BLOCK * BLOCK));
        }
        sum
    };
    let (columns, rows) = (a.width() / BLOCK, a.height() / BLOCK);
    let blocks = (0..columns * rows).map(|i| (i % columns * BLOCK, i / columns * BLOCK));
    let mut differences: Vec<f64> = blocks
        .map(|(x, y)| {
            let (a, b) = (mean(a, x, y), mean(b, x, y));
            (0..3).map(|c| (a[c] - b[c]).abs()).fold(0.0, f64::max)
        })
        .collect();
    differences.sort_by(f64::total_cmp);
    differences[differences.len() * 99 / 100]
}

/// A page with a graph of this many nodes, with skip connections and branches.
fn large(nodes: u32) -> ReportData {
    let mut data = ReportData { file: "large.pte".to_owned(), graphs: Vec::new(), ..digits() };
    let edges: Vec<(u32, u32)> = (1..nodes)
        .flat_map(|v| [(v - 1 - (v - 1) % 3, v), (v.saturating_sub(12), v)])
        .filter(|(a, b)| a != b)
        .collect();
    let drawn = layout(&Input { sizes: vec![(130, 42); nodes as usize], edges: edges.clone() });
    let label = data.strings.add("convolution");
    let detail = data.strings.add("1×32×112×112");
    let node = |v: usize| Node {
        label,
        detail,
        family: (v % 13) as u8,
        at: (drawn.nodes[v].0, drawn.nodes[v].1, 130),
        ..Node::default()
    };
    let edge = |(&ends, route): (&(u32, u32), &Vec<(i64, i64)>)| Edge {
        ends,
        text: detail,
        partial: false,
        route: route.iter().flat_map(|&(x, y)| [x, y]).collect(),
    };
    data.graphs.push(Graph {
        name: label,
        kind: GraphKind::Method,
        parent: None,
        size: (drawn.width, drawn.height),
        nodes: (0..nodes as usize).map(node).collect(),
        edges: edges.iter().zip(&drawn.routes).map(edge).collect(),
    });
    data.arenas.clear();
    data.tables.clear();
    data
}

#[test]
#[ignore = "needs Chromium"]
fn six_thousand_nodes_are_drawn_in_a_second() {
    let folder = Folder::new("speed");
    let html = page(&large(6_000)).unwrap();
    // The best of several runs: other programs may compete for the processor.
    let times = (0..3).map(|_| {
        let output = folder.open(&html, "measure", &["--dump-dom"]);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        let (_, after) = shown.split_once("data-drawn=\"").expect("the page has noted its time");
        after.split_once('"').unwrap().0.parse::<u64>().unwrap()
    });
    let best = times.min().unwrap();
    println!("6,000 nodes are drawn in {best} ms");
    assert!(best < MAX_MILLISECONDS, "{best} ms");
}
