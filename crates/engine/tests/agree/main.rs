//! A lowered graph computes the same results as its calls executed one by one: random graphs of operator calls, run
//! both ways.

mod activations;
mod attention;
mod batches;
mod both;
mod convolutions;
mod elementwise;
mod half_precision;
mod layouts;
mod quantized;
mod views;
