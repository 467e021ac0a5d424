package health

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drainconfig"
)

// maxRuleCost bounds the work of one rule for one event.
const maxRuleCost = 100_000

// Decision is what is done about an unhealthy event.
type Decision struct {
	Quarantine, Drain bool
	// Reason is a sentence for people.
	Reason string
}

// Rules decide about events.
type Rules struct{ compiled []compiledRule }

type compiledRule struct {
	drainconfig.Rule
	program cel.Program
}

// ruleEvent is an event as rules see it, under the names of its JSON.
type ruleEvent struct {
	Version           int64             `json:"version"`
	Agent             string            `json:"agent"`
	ComponentClass    string            `json:"componentClass"`
	CheckName         string            `json:"checkName"`
	IsFatal           bool              `json:"isFatal"`
	Message           string            `json:"message"`
	RecommendedAction string            `json:"recommendedAction"`
	ErrorCode         []string          `json:"errorCode"`
	EntitiesImpacted  []ruleEntity      `json:"entitiesImpacted"`
	Metadata          map[string]string `json:"metadata"`
	NodeName          string            `json:"nodeName"`
	ID                string            `json:"id"`
}

type ruleEntity struct {
	EntityType  string `json:"entityType"`
	EntityValue string `json:"entityValue"`
}

// CompileRules compiles the expressions of rules, and refuses those that are no conditions over an event.
func CompileRules(rules []drainconfig.Rule) (*Rules, error) {
	env, err := cel.NewEnv(
		ext.NativeTypes(reflect.TypeFor[ruleEvent](), reflect.TypeFor[ruleEntity](), ext.ParseStructTag("json")), ext.Strings(),
		cel.Variable("event", cel.ObjectType("health.ruleEvent")),
	)
	if err != nil {
		return nil, fmt.Errorf("rules of events: %w", err)
	}
	made := &Rules{}
	var wrong []error
	for _, r := range rules {
		program, err := compile(env, r.When)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", r.Where, err))
			continue
		}
		made.compiled = append(made.compiled, compiledRule{Rule: r, program: program})
	}
	return made, errors.Join(wrong...)
}

func compile(env *cel.Env, expression string) (cel.Program, error) {
	checked, issues := env.Compile(expression)
	if issues.Err() != nil {
		return nil, fmt.Errorf("%q is not an expression over an event: %w", expression, issues.Err())
	}
	if !checked.OutputType().IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("%q is of type %s, and a rule needs true or false", expression, checked.OutputType())
	}
	return env.Program(checked, cel.CostLimit(maxRuleCost))
}

// Decide decides about an unhealthy event: its overrides first, then the first rule that matches, then whether it is fatal. An expression
// that cannot be evaluated for an event, because it asks for metadata that the event does not have, does not match.
func (r *Rules) Decide(e *v1alpha1.HealthEvent) Decision {
	d := r.match(e)
	if o := e.Spec.DrainOverrides; o != nil && o.Force && !d.Drain {
		d = Decision{Quarantine: true, Drain: true, Reason: "The event forces the drain."}
	}
	if o := e.Spec.QuarantineOverrides; o != nil && o.Force && !d.Quarantine {
		d.Quarantine, d.Reason = true, "The event forces the quarantine."
	}
	if o := e.Spec.DrainOverrides; o != nil && o.Skip && d.Drain {
		d.Drain, d.Reason = false, "The event skips the drain."
	}
	if o := e.Spec.QuarantineOverrides; o != nil && o.Skip {
		d = Decision{Reason: "The event skips the quarantine."}
	}
	return d
}

func (r *Rules) match(e *v1alpha1.HealthEvent) Decision {
	if r != nil && len(r.compiled) > 0 {
		input := map[string]any{"event": asRuleEvent(e)}
		for _, rule := range r.compiled {
			if result, _, err := rule.program.Eval(input); err == nil && result.Value() == true {
				return Decision{Quarantine: rule.Quarantine, Drain: rule.Drain, Reason: fmt.Sprintf("Rule %s matches.", rule.Name)}
			}
		}
	}
	if e.Spec.IsFatal {
		return Decision{Quarantine: true, Drain: true, Reason: "The problem is fatal."}
	}
	return Decision{Reason: "The problem is not fatal."}
}

func asRuleEvent(e *v1alpha1.HealthEvent) ruleEvent {
	s := &e.Spec
	out := ruleEvent{
		Version: s.Version, Agent: s.Agent, ComponentClass: s.ComponentClass, CheckName: s.CheckName, IsFatal: s.IsFatal, Message: s.Message,
		RecommendedAction: string(s.RecommendedAction), ErrorCode: s.ErrorCode, Metadata: s.Metadata, NodeName: s.NodeName, ID: e.EventID(),
	}
	for _, entity := range s.EntitiesImpacted {
		out.EntitiesImpacted = append(out.EntitiesImpacted, ruleEntity(entity))
	}
	return out
}
