//! `--exclude` and `--include`, whose order on the command line counts.

use crate::cli::exit::Failure;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use towpath_files::client::{Filter, FilterRule};

/// Rules, in the order in which they were given.
pub struct FilterArgs(Vec<FilterRule>);

impl FilterArgs {
    /// The filter of these rules.
    pub fn filter(&self) -> Result<Filter, Failure> {
        Filter::new(&self.0).map_err(|why| Failure::usage(format!("--exclude, --include: {why}")))
    }
}

const EXCLUDE: &str = "exclude";
const INCLUDE: &str = "include";

impl Args for FilterArgs {
    fn augment_args(command: Command) -> Command {
        let option = |name: &'static str, help: &'static str| {
            Arg::new(name).long(name).value_name("PATTERN").action(ArgAction::Append).help(help)
        };
        command
            .arg(option(EXCLUDE, "Skip what matches, as in .gitignore: *.tmp, /cache/"))
            .arg(option(INCLUDE, "Fetch only what matches; the first matching pattern wins"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        FilterArgs::augment_args(command)
    }
}

impl FromArgMatches for FilterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<FilterArgs, Error> {
        let mut rules = FilterArgs(Vec::new());
        rules.update_from_arg_matches(matches)?;
        Ok(rules)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let of = |name: &str, rule: fn(String) -> FilterRule| -> Vec<(usize, FilterRule)> {
            let patterns = matches.get_many::<String>(name).into_iter().flatten().cloned().map(rule);
            let places = matches.indices_of(name).into_iter().flatten().chain(std::iter::repeat(usize::MAX));
            places.zip(patterns).collect()
        };
        let mut rules = of(INCLUDE, FilterRule::Include);
        rules.extend(of(EXCLUDE, FilterRule::Exclude));
        rules.sort_by_key(|(place, _)| *place);
        self.0 = rules.into_iter().map(|(_, rule)| rule).collect();
        Ok(())
    }
}
