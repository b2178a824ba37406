//! The shape of a payload: what is computed in it, and what is carried as it is.

use bson::{Bson, Document};
use cel::{
    common::ast::{EntryExpr, Expr, LiteralValue, MapExpr, operators},
    parser,
};

use super::expression::{Expression, Found};
use crate::row::Event;

/// A payload with the maps, lists and choices it is made of taken apart, so that what is not computed keeps its
/// type and its order.
pub(super) enum Shape {
    Document(Vec<(String, Shape)>),
    Array(Vec<Shape>),
    /// `condition ? then : otherwise`.
    Choice(Expression, Box<Shape>, Box<Shape>),
    /// The way to a value, and the same as an expression, which knows what to say when it leads nowhere.
    Path(Vec<String>, Expression),
    Computed(Expression),
}

impl Shape {
    pub(super) fn of(expression: Expression) -> Self {
        Self::read(&expression.0).unwrap_or(Self::Computed(expression))
    }

    fn read(expression: &parser::Expression) -> Option<Self> {
        match &expression.expr {
            Expr::Map(map) => Self::document(map),
            Expr::List(list) if list.optional_indices.is_empty() => {
                Some(Self::Array(list.elements.iter().map(Self::part).collect()))
            }
            Expr::Call(call) if call.func_name == operators::CONDITIONAL => match &call.args[..] {
                [condition, then, otherwise] => Some(Self::Choice(
                    Expression(condition.clone()),
                    Self::part(then).into(),
                    Self::part(otherwise).into(),
                )),
                _ => None,
            },
            path => {
                let mut names = Vec::new();
                walk(path, &mut names)?;
                Some(Self::Path(names, Expression(expression.clone())))
            }
        }
    }

    fn part(expression: &parser::Expression) -> Self {
        Self::of(Expression(expression.clone()))
    }

    /// Of a map whose keys are texts, each once; CEL refuses a repeated one when it computes it.
    fn document(map: &MapExpr) -> Option<Self> {
        let mut fields: Vec<(String, Self)> = Vec::new();
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                return None;
            };
            let Expr::Literal(LiteralValue::String(key)) = &entry.key.expr else {
                return None;
            };
            let key = key.inner();
            if entry.optional || fields.iter().any(|(known, _)| known == key) {
                return None;
            }
            fields.push((key.to_owned(), Self::part(&entry.value)));
        }
        Some(Self::Document(fields))
    }

    pub(super) fn fill(&self, event: &Event) -> Result<Bson, String> {
        match self {
            Self::Document(fields) => {
                let field = |(key, shape): &(String, Self)| Ok((key.clone(), shape.fill(event)?));
                let document: Result<Document, String> = fields.iter().map(field).collect();
                document.map(Bson::Document)
            }
            Self::Array(shapes) => {
                let values: Result<Vec<Bson>, String> =
                    shapes.iter().map(|shape| shape.fill(event)).collect();
                values.map(Bson::Array)
            }
            Self::Choice(condition, then, otherwise) => {
                match super::truth(&condition.evaluate(event)?)? {
                    true => then.fill(event),
                    false => otherwise.fill(event),
                }
            }
            Self::Path(path, expression) => match at(path, event) {
                Some(found) => Ok(found.to_bson()),
                None => expression.evaluate(event),
            },
            Self::Computed(expression) => expression.evaluate(event),
        }
    }
}

fn at<'a>(path: &[String], event: &'a Event) -> Option<Found<'a>> {
    let (variable, fields) = path.split_first()?;
    Found::variable(event, variable)?.within(fields.iter().map(String::as_str))
}

/// The names on the way of a plain path, variable first.
fn walk(expression: &Expr, names: &mut Vec<String>) -> Option<()> {
    match expression {
        Expr::Ident(name) => names.push(name.clone()),
        Expr::Select(select) if !select.test => {
            walk(&select.operand.expr, names)?;
            names.push(select.field.clone());
        }
        _ => return None,
    }
    Some(())
}
