// Package route gives tables other names at the sink than at the source.
//
//	rule      match "shop.*"   schema "crm"   table "{table}_copy"        shop.orders ─▶ crm.orders_copy
//
// A changefeed speaks of its tables by the names that they have at the source. Only at the edge to the sink are names replaced: of tables
// that are written, in the text of DDL, and in what the sink knows. So every name must lead back: a rule keeps what its pattern leaves
// open, and of the tables inside the filter only one may have a name at the sink.
package route
