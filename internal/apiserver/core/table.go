package core

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// columns are what `kubectl get` prints of a kind.
type columns []column

// column is one of them; wide ones are printed with -o wide only.
type column struct {
	name string
	wide bool
	cell func(runtime.Object) any
}

func nameColumn() column {
	return column{name: "Name", cell: func(o runtime.Object) any { return o.(metav1.Object).GetName() }}
}

func ageColumn() column {
	return column{name: "Age", cell: func(o runtime.Object) any { return since(o.(metav1.Object).GetCreationTimestamp().Time) }}
}

func since(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t))
}

// ConvertToTable implements rest.TableConvertor.
func (c columns) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		table.ColumnDefinitions = c.definitions()
	}
	if m, err := meta.ListAccessor(object); err == nil {
		table.ResourceVersion, table.Continue, table.RemainingItemCount = m.GetResourceVersion(), m.GetContinue(), m.GetRemainingItemCount()
	} else if m, ok := object.(metav1.Object); ok {
		table.ResourceVersion = m.GetResourceVersion()
	}
	add := func(o runtime.Object) error {
		if _, ok := o.(metav1.Object); !ok {
			return fmt.Errorf("a %T cannot be printed as a table", o)
		}
		row := metav1.TableRow{Object: runtime.RawExtension{Object: o}}
		for _, column := range c {
			row.Cells = append(row.Cells, column.cell(o))
		}
		table.Rows = append(table.Rows, row)
		return nil
	}
	if meta.IsListType(object) {
		return table, meta.EachListItem(object, add)
	}
	return table, add(object)
}

func (c columns) definitions() []metav1.TableColumnDefinition {
	all := make([]metav1.TableColumnDefinition, len(c))
	for i, column := range c {
		all[i] = metav1.TableColumnDefinition{Name: column.name, Type: "string"}
		if column.name == "Name" {
			all[i].Format = "name"
		}
		if column.wide {
			all[i].Priority = 1
		}
	}
	return all
}
