// Package wire has the requests of maintainers to nodes.
package wire

// Speaker is the node that sends the request.
func (r *BootstrapRequest) Speaker() string { return r.GetCaller().GetNode() }

// Speaker is the node that sends the request.
func (r *OrderRequest) Speaker() string { return r.GetCaller().GetNode() }

// Speaker is the node that sends the request.
func (r *ReportRequest) Speaker() string { return r.GetCaller().GetNode() }
