// Package wire holds the messages between maintainers and nodes.
package wire

// Speaker is the node that asks.
func (r *BootstrapRequest) Speaker() string { return r.GetCaller().GetNode() }

// Speaker is the node that orders.
func (r *OrderRequest) Speaker() string { return r.GetCaller().GetNode() }

// Speaker is the node that wants a report.
func (r *ReportRequest) Speaker() string { return r.GetCaller().GetNode() }
