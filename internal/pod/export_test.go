package pod

// Judge says what an answer of the API means.
var Judge = judge
