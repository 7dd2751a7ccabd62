//! Classifies pictures: `pteron-classifier MODEL PICTURE...` prints the best class of each, on a line of its own.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use pteron::tools::{picture, task};
use pteron::{Pool, Program, SharedMethod, Tensor, available_threads};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The class of a picture, and its score.
struct Class {
    label: String,
    score: f32,
}

/// A model of which any number of threads can classify pictures.
struct Classifier {
    forward: SharedMethod,
    task: task::TaskMetadata,
}

impl Classifier {
    fn open(path: &Path) -> Result<Self> {
        let program = Program::open(path)?;
        let task = task::of(&program)?.unwrap_or_default();
        // One thread for each picture instead of several: pictures are independent, and no thread waits for another.
        let options = pteron::load_options().pool(Pool::new(1));
        let forward = SharedMethod::new(program.load_method("forward", options)?)?;
        Ok(Self { forward, task })
    }

    fn classify(&self, path: &Path) -> Result<Class> {
        let mut method = self.forward.session()?;
        let preparation = self.task.preprocessing.clone().unwrap_or_default().preparation();
        let input = method.meta().inputs().into_iter().next().and_then(|input| input.tensor);
        let meta = input.ok_or("the first input of the model is no tensor")?.meta;
        let input: Tensor = picture::read(path, &meta, &preparation)?;
        let outputs = method.execute(&[input.into()])?;
        let scores: Vec<f32> = outputs[0].to_vec()?;
        let best = (0..scores.len())
            .max_by(|&a, &b| scores[a].total_cmp(&scores[b]))
            .ok_or("the model has no classes")?;
        let label = self.task.labels.get(best).cloned().unwrap_or_else(|| best.to_string());
        Ok(Class { label, score: scores[best] })
    }
}

fn run(model: &Path, pictures: &[String]) -> Result<bool> {
    let classifier = Classifier::open(model)?;
    let (next, (send, receive)) = (AtomicUsize::new(0), mpsc::channel());
    std::thread::scope(|threads| {
        for _ in 0..available_threads().min(pictures.len()) {
            let (send, next, classifier) = (send.clone(), &next, &classifier);
            threads.spawn(move || {
                while let Some(picture) = pictures.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if send.send((picture, classifier.classify(picture.as_ref()))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut all = true;
        for (picture, class) in receive {
            match class {
                Ok(Class { label, score }) => println!("{picture}\t{label}\t{score:.4}"),
                Err(e) => {
                    all = false;
                    eprintln!("{picture}: {e}");
                }
            }
        }
        Ok(all)
    })
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, pictures @ ..] = &args[..] else {
        eprintln!("usage: pteron-classifier MODEL PICTURE...");
        return ExitCode::from(2);
    };
    match run(model.as_ref(), pictures) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{model}: {e}");
            ExitCode::FAILURE
        }
    }
}
