//! The page of a report in a browser: what it looks like, that it logs no error, and how fast it draws. Ignored where not
//! asked for, since it needs Chromium: `PTERON_CHROMIUM`, or `chromium` on the path.
//!
//! `BLESS=1 cargo test -p pteron-toolbox --test page -- --ignored` keeps the picture of today.

use image::RgbImage;
use pteron_toolbox::report::layout::{Input, layout};
use pteron_toolbox::report::{Edge, Graph, GraphKind, Measured, Node, ReportData, gather, page};
use runtime::{DataLoader, FileLoader, LoadOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

/// Milliseconds in which a graph of 6,000 nodes is read and drawn, its beginning and whole: a second, and three on a
/// machine that is busy with something else.
const MOST_MILLISECONDS: u64 = 3_000;
/// Blocks of a picture that are compared, and how far their mean colours may be apart: fonts differ from machine to
/// machine.
const BLOCK: u32 = 24;
const TOLERANCE: f64 = 26.0;

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pteron-page-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Opens a page with these options.
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
    let mut data = gather(&loader, &LoadOptions::new(kernels::registry()), &Measured::default()).unwrap();
    data.file = "examples/digits/digits.pte".to_owned();
    data
}

#[test]
#[ignore = "needs Chromium"]
fn the_page_looks_as_it_did() {
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
fn tabs_have_a_line_of_their_own_where_there_is_no_room() {
    let folder = Folder::new("narrow");
    let html = page(&digits()).unwrap();
    for (size, is_narrow) in [("--window-size=1600,700", false), ("--window-size=600,700", true)] {
        let output = folder.open(&html, "measure", &["--dump-dom", size]);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(shown.contains("<header class=\"narrow\">"), is_narrow, "{size}");
    }
}

/// How far the mean colours of blocks are apart, of 256: that of the hundredth that are furthest.
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
    let mut apart: Vec<f64> = blocks
        .map(|(x, y)| {
            let (a, b) = (mean(a, x, y), mean(b, x, y));
            (0..3).map(|c| (a[c] - b[c]).abs()).fold(0.0, f64::max)
        })
        .collect();
    apart.sort_by(f64::total_cmp);
    apart[apart.len() * 99 / 100]
}

/// A graph of so many nodes, with skips and branches.
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
    // The best of some: another program may have had the processor.
    let times = (0..3).map(|_| {
        let output = folder.open(&html, "measure", &["--dump-dom"]);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        let (_, after) = shown.split_once("data-drawn=\"").expect("the page has noted its time");
        after.split_once('"').unwrap().0.parse::<u64>().unwrap()
    });
    let best = times.min().unwrap();
    println!("6,000 nodes are drawn in {best} ms");
    assert!(best < MOST_MILLISECONDS, "{best} ms");
}
