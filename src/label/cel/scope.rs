//! What an expression mentions, found before it is ever evaluated.

use cel::{
    Context, ExecutionError, Value,
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr},
};

use super::expression::STANDARD;

const VARIABLES: [&str; 4] = ["origin", "state", "trailers", "input"];
/// In front of the names of functions: `optional.of(…)`.
const NAMESPACE: &str = "optional";

/// Refuses names that are neither variables of an event nor anything of CEL's.
pub(super) fn check(expression: &IdedExpr) -> Result<(), String> {
    let mut mentions = Mentions::default();
    mentions.collect(expression);
    // First, as a misspelt `map` leaves its variable without meaning as well.
    if let Some(name) = mentions.functions.iter().find(|name| !is_function(name)) {
        return Err(format!(
            "there is no function {name}, or not with so many arguments; there are those of CEL's standard library"
        ));
    }
    let is_stranger = |name: &&&str| !VARIABLES.contains(*name) && !is_type(name);
    match mentions.variables.iter().find(is_stranger) {
        Some(name) => Err(format!(
            "there is no variable {name}; there are {}",
            VARIABLES.join(", ")
        )),
        None => Ok(()),
    }
}

/// Whether what it makes depends on the event.
pub(super) fn mentions_event(expression: &IdedExpr) -> bool {
    let mut mentions = Mentions::default();
    mentions.collect(expression);
    mentions
        .variables
        .iter()
        .any(|name| VARIABLES.contains(name))
}

/// Levels of nesting.
pub(super) fn depth(expression: &IdedExpr) -> usize {
    1 + parts(expression).into_iter().map(depth).max().unwrap_or(0)
}

#[derive(Default)]
struct Mentions<'e> {
    /// Free ones: not those that `map`, `all` and the like bring with them.
    variables: Vec<&'e str>,
    functions: Vec<&'e str>,
    bound: Vec<&'e str>,
}

impl<'e> Mentions<'e> {
    fn collect(&mut self, expression: &'e IdedExpr) {
        match &expression.expr {
            Expr::Ident(name) if !self.bound.contains(&name.as_str()) => self.variables.push(name),
            Expr::Comprehension(each) => self.collect_each(each),
            Expr::Call(call) => self.collect_call(call),
            _ => parts(expression)
                .into_iter()
                .for_each(|part| self.collect(part)),
        }
    }

    fn collect_call(&mut self, call: &'e CallExpr) {
        self.functions.push(&call.func_name);
        let target = call.target.as_deref();
        let is_namespace = |target: &&IdedExpr| target.expr == Expr::Ident(NAMESPACE.into());
        let parts = target
            .filter(|target| !is_namespace(target))
            .into_iter()
            .chain(&call.args);
        parts.for_each(|part| self.collect(part));
    }

    fn collect_each(&mut self, each: &'e ComprehensionExpr) {
        self.collect(&each.iter_range);
        self.collect(&each.accu_init);
        let outside = self.bound.len();
        self.bound
            .extend([each.iter_var.as_str(), each.accu_var.as_str()]);
        self.bound.extend(each.iter_var2.as_deref());
        for part in [&each.loop_cond, &each.loop_step, &each.result] {
            self.collect(part);
        }
        self.bound.truncate(outside);
    }
}

fn parts(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call
            .target
            .as_deref()
            .into_iter()
            .chain(&call.args)
            .collect(),
        Expr::Comprehension(each) => vec![
            &each.iter_range,
            &each.accu_init,
            &each.loop_cond,
            &each.loop_step,
            &each.result,
        ],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map
            .entries
            .iter()
            .flat_map(|entry| of_entry(&entry.expr))
            .collect(),
        Expr::Struct(made) => made
            .entries
            .iter()
            .flat_map(|entry| of_entry(&entry.expr))
            .collect(),
        Expr::Select(select) => vec![&select.operand],
    }
}

fn of_entry(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

fn is_type(name: &str) -> bool {
    exists(Expr::Ident(name.to_owned()))
}

/// Operators are no names.
fn is_function(name: &str) -> bool {
    if !name.starts_with(|first: char| first.is_alphabetic()) {
        return true;
    }
    let call = |target: Option<Expr>| {
        Expr::Call(CallExpr {
            func_name: name.to_owned(),
            target: target.map(|expr| IdedExpr { id: 0, expr }.into()),
            args: Vec::new(),
        })
    };
    let text = Expr::List(Default::default());
    let namespace = Expr::Ident(NAMESPACE.to_owned());
    [None, Some(text), Some(namespace)]
        .into_iter()
        .any(|target| exists(call(target)))
}

/// CEL cannot be asked what it has; it says so when it evaluates what it has not.
fn exists(expr: Expr) -> bool {
    let context = Context::with_env(STANDARD.clone());
    let made = Value::resolve_val(&IdedExpr { id: 0, expr }, &context).map(|_| ());
    !matches!(made, Err(ExecutionError::UndeclaredReference(_)))
}
