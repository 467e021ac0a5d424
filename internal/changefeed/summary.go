package changefeed

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kind"
)

// ExplainAfter is the lag from which on people are shown what a changefeed waits for.
const ExplainAfter = 30 * time.Second

// Summarize says how changefeeds are.
func Summarize(list []v1alpha1.Changefeed, now time.Time) *kind.Summary {
	k := kind.NewSummary("changefeed", "changefeeds", "ebb status changefeeds")
	for i := range list {
		state, message := summaryState(&list[i], now)
		k.Add(kind.NameIn(list[i].Namespace, list[i].Name), state, message)
	}
	return k
}

// summaryState follows from what the maintainer and the coordinator wrote.
func summaryState(cf *v1alpha1.Changefeed, now time.Time) (kind.State, string) {
	s := cf.Status
	switch {
	case !cf.DeletionTimestamp.IsZero():
		return kind.Deleting, s.Error
	case s.State == v1alpha1.ChangefeedFailed:
		return kind.Failed, s.Error
	case s.State == v1alpha1.ChangefeedPaused && !cf.Wanted():
		return kind.State{Name: "paused", Rank: kind.Wanted}, ""
	case s.State == v1alpha1.ChangefeedRunning && s.Error != "":
		return kind.State{Name: "in trouble", Rank: kind.Wrong}, s.Error
	case s.State == v1alpha1.ChangefeedRunning && s.Slowest != "" && s.CheckpointTime != nil && now.Sub(s.CheckpointTime.Time) > ExplainAfter:
		return kind.State{Name: "lagging", Rank: kind.Wrong}, fmt.Sprintf("%s behind, %s", duration.HumanDuration(now.Sub(s.CheckpointTime.Time)), s.Slowest)
	case s.State == v1alpha1.ChangefeedRunning:
		return kind.Running, ""
	case s.State == "":
		return kind.State{Name: "pending", Rank: kind.Busy}, s.Error
	}
	return kind.State{Name: strings.ToLower(string(s.State)), Rank: kind.Busy}, s.Error
}
