//! Token usage as an agent tells it, checked before it is believed (pitfall T2).
//!
//! Agents write these numbers, so they are hostile until proven plain: negative, fractional, endless or absurd ones are
//! refused, and a total never falls. Pure.

use serde_json::Value;
use subagent_link::{Snapshot, Usage, UsageCost};

/// Largest token count that is believed: every JSON implementation can carry it exactly (2^53 - 1).
const MAX_TOKENS: u64 = (1 << 53) - 1;
/// Largest amount of money that is believed, in units of its currency.
const MAX_AMOUNT: f64 = 1e12;

/// Folds a `usage_update` into the usage: the context now, its size, the cost of the session so far. The context may
/// shrink, when the agent compacts it; a cost may not.
pub fn fold_update(usage: &mut Usage, update: &Value) {
    if let Some(used) = tokens(update.get("used")) {
        usage.context_used = Some(used);
    }
    if let Some(size) = tokens(update.get("size")) {
        usage.context_size = Some(size);
    }
    if let Some(cost) = update.get("cost").and_then(cost) {
        let falls = usage.cost.as_ref().is_some_and(|known| {
            known.currency != cost.currency
                || known.amount.parse::<f64>().unwrap_or(0.0) > cost.amount.parse().unwrap_or(0.0)
        });
        if !falls {
            usage.cost = Some(cost);
        }
    }
}

/// Folds the `usage` of a prompt's response into the usage. The protocol defines these as totals of the session.
pub fn fold_response(usage: &mut Usage, response: &Value) {
    raise(&mut usage.input_tokens, response.get("inputTokens"));
    raise(&mut usage.output_tokens, response.get("outputTokens"));
    raise(&mut usage.cached_input_tokens, response.get("cachedReadTokens"));
    raise(&mut usage.total_tokens, response.get("totalTokens"));
}

/// Applies one of the folds to a snapshot. A snapshot without usage stays without when nothing could be believed.
pub fn apply(snapshot: &mut Snapshot, fold: fn(&mut Usage, &Value), told: &Value) {
    let mut usage = snapshot.usage.clone().unwrap_or_default();
    fold(&mut usage, told);
    if usage != Usage::default() {
        snapshot.usage = Some(usage);
    }
}

fn raise(known: &mut Option<i64>, told: Option<&Value>) {
    if let Some(told) = tokens(told).filter(|told| known.is_none_or(|known| known <= *told)) {
        *known = Some(told);
    }
}

fn tokens(value: Option<&Value>) -> Option<i64> {
    let number = value?.as_u64().filter(|number| *number <= MAX_TOKENS)?;
    i64::try_from(number).ok()
}

fn cost(value: &Value) -> Option<UsageCost> {
    let amount = value.get("amount")?.as_f64().filter(|amount| (0.0..=MAX_AMOUNT).contains(amount))?;
    let currency = value.get("currency")?.as_str()?;
    if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    // Adding zero turns -0 into 0.
    Some(UsageCost { amount: format!("{}", amount + 0.0), currency: currency.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[test]
    fn plain_numbers_are_believed() {
        let mut usage = Usage::default();
        let update = json!({"used": 10, "size": 100, "cost": {"amount": 0.0125, "currency": "USD"}});
        fold_update(&mut usage, &update);
        fold_response(
            &mut usage,
            &json!({"inputTokens": 1, "outputTokens": 2, "cachedReadTokens": 3, "totalTokens": 6}),
        );
        let cost = Some(UsageCost { amount: "0.0125".into(), currency: "USD".into() });
        let all = Usage {
            input_tokens: Some(1),
            output_tokens: Some(2),
            cached_input_tokens: Some(3),
            total_tokens: Some(6),
            cost,
            context_used: Some(10),
            context_size: Some(100),
        };
        assert_eq!(usage, all);
    }

    #[rstest]
    #[case(json!(-1))]
    #[case(json!(1e30))]
    #[case(json!(1.5))]
    #[case(json!("7"))]
    #[case(json!(null))]
    #[case(json!(u64::MAX))]
    #[case(json!([1]))]
    fn t2_hostile_numbers_are_refused(#[case] number: Value) {
        let mut usage = Usage::default();
        fold_update(&mut usage, &json!({"used": number, "size": number}));
        fold_response(&mut usage, &json!({"inputTokens": number, "totalTokens": number}));
        assert_eq!(usage, Usage::default());
    }

    #[rstest]
    #[case(json!({"amount": -0.1, "currency": "USD"}))]
    #[case(json!({"amount": 1e300, "currency": "USD"}))]
    #[case(json!({"amount": 1, "currency": "usd\n"}))]
    #[case(json!({"amount": "1", "currency": "USD"}))]
    fn t2_hostile_costs_are_refused(#[case] cost: Value) {
        let mut usage = Usage::default();
        fold_update(&mut usage, &json!({"cost": cost}));
        assert_eq!(usage.cost, None);
    }

    #[test]
    fn t2_totals_never_fall() {
        let mut usage = Usage::default();
        fold_response(&mut usage, &json!({"totalTokens": 9}));
        fold_response(&mut usage, &json!({"totalTokens": 8}));
        fold_update(&mut usage, &json!({"used": 9, "cost": {"amount": 2, "currency": "EUR"}}));
        fold_update(&mut usage, &json!({"used": 8, "cost": {"amount": 1, "currency": "EUR"}}));
        assert_eq!((usage.total_tokens, usage.context_used), (Some(9), Some(8)));
        assert_eq!(usage.cost.map(|cost| cost.amount), Some("2".into()));
    }
}
