//! `linerate speed`.
pub(crate) mod args;
pub(crate) mod report;
pub(crate) fn main(_args: &args::SpeedArgs) -> Result<(), String> {
    Err("not yet".into())
}
